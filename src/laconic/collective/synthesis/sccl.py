"""SCCL: collectives with the fewest steps for their bandwidth, each proved to exist or not to.

A schedule of C chunks per rank, S steps and R rounds takes S times the latency and R/C times what a link needs for a
rank's data. Which (C, S, R) exist is a question for a solver; those that no other beats in both are the frontier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from laconic.collective.compose import reverse
from laconic.collective.program import Program
from laconic.collective.relation import Relation
from laconic.collective.synthesis.bounds import Bounds, bounds
from laconic.collective.synthesis.step_model import StepModel
from laconic.collective.synthesis.symmetry import symmetries
from laconic.collective.synthesis.wiring import Wiring, wiring
from laconic.network.graph import Graph
from laconic.registry import technique

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Question:
    """Whether a collective exists on a graph with so many chunks, steps and rounds.

    - `relation`: the collective, of which every chunk is cut into `chunks`.
    - `chunks`, `steps`, `rounds`: SCCL's C, S and R.
    - `round_bytes_per_second`: a link of this rate carries one chunk in a round; the slowest link's, if not given.
    """

    graph: Graph
    relation: Relation
    chunks: int
    steps: int
    rounds: int
    round_bytes_per_second: float = 0.0


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective that answers a question, and what it was proved against.

    - `program`: its sends.
    - `chunks`, `steps`: SCCL's C and S.
    - `step_rounds`: the rounds of each step, R in all.
    - `least_steps`, `least_rounds_per_chunk`: what no schedule can beat in S, and in R/C.
    """

    program: Program
    chunks: int
    steps: int
    step_rounds: tuple[int, ...]
    least_steps: int
    least_rounds_per_chunk: float

    @property
    def rounds(self) -> int:
        """SCCL's R."""
        return sum(self.step_rounds)

    @property
    def is_latency_optimal(self) -> bool:
        """Whether no schedule has fewer steps."""
        return self.steps == self.least_steps

    @property
    def is_bandwidth_optimal(self) -> bool:
        """Whether no schedule has fewer rounds for each chunk."""
        return self.rounds / self.chunks <= self.least_rounds_per_chunk * (1 + 1e-9)

    def reversed(self) -> Schedule:
        """Return the schedule backwards, for the graph backwards: a reduce-scatter from an all-gather."""
        return Schedule(
            reverse(self.program),
            self.chunks,
            self.steps,
            self.step_rounds[::-1],
            self.least_steps,
            self.least_rounds_per_chunk,
        )


@dataclass(frozen=True, eq=False)
class Answer:
    """A schedule, or a proof that there is none, or neither, where time ran out."""

    schedule: Schedule | None
    is_proved_impossible: bool = False


@technique(
    "sccl",
    axis="architecture",
    paper="Cai et al., PPoPP 2021",
    why_no_word="It finds programs for a given graph, which are run by `group.run` as any other program is.",
)
def decide(question: Question, seconds: float = 60.0) -> Answer:
    """Return a schedule of C chunks, S steps and R rounds on a graph, or the proof that there is none.

    Bounds are asked first, then the solver for a schedule that all symmetries of the graph map onto itself, which has
    fewer choices; where there is none such, it is asked for any. The collective is one that copies; a reduce-scatter is
    an all-gather backwards.
    """
    task = _Task(question)
    return task.answer(question, time.monotonic() + seconds)


def frontier(
    graph: Graph,
    relation: Relation,
    extra_rounds: int = 4,
    most_chunks: int = 8,
    seconds: float = 60.0,
    progress: Progress = lambda line: None,
) -> Iterator[Schedule]:
    """Yield the schedules that no other beats in steps and in rounds per chunk, those with the fewest steps first.

    For each number of steps, from the fewest that are possible, combinations of rounds and chunks are tried from the
    least rounds per chunk on; the loop ends where a schedule meets the bound. A question that is not decided in time
    is passed over, and progress says so.

    - `extra_rounds`: a schedule has at most so many rounds more than steps.
    - `most_chunks`: a chunk of the relation is cut into at most so many; a broadcast gains from ever more.
    - `seconds`: for each question.
    - `progress`: is told each question and its answer.
    """
    task = _Task(Question(graph, relation, 1, 1, 1))
    best: Fraction | None = None
    for steps in range(task.least.steps, max(graph.size, task.least.steps + 1)):
        for rounds, chunks in _combinations(steps, extra_rounds, most_chunks, task.rounds_per_chunk, best):
            answer = task.answer(Question(graph, relation, chunks, steps, rounds), time.monotonic() + seconds)
            found = answer.schedule
            said = "yes" if found else "no" if answer.is_proved_impossible else "not decided in time"
            progress(f"{chunks} chunks, {steps} steps, {rounds} rounds: {said}")
            if found:
                best = Fraction(rounds, chunks)
                yield found
                break
        if best is not None and best <= task.rounds_per_chunk * (1 + 1e-9):
            return


class _Task:
    """What all questions of a graph and a collective share."""

    def __init__(self, question: Question) -> None:
        self.wiring: Wiring = wiring(question.graph)
        self.least: Bounds = bounds(question.graph, question.relation, self.wiring)
        self.unit = question.round_bytes_per_second or min(rate for _, rate in self.wiring.limits)
        self.rounds_per_chunk = self.unit * question.relation.pieces / self.least.vectors_per_second

    def answer(self, question: Question, until: float) -> Answer:
        """Return the answer that is found until then."""
        chunks, steps, rounds = question.chunks, question.steps, question.rounds
        too_few_rounds = rounds < chunks * self.rounds_per_chunk * (1 - 1e-9)
        if steps < self.least.steps or rounds < steps or too_few_rounds:
            return Answer(None, is_proved_impossible=True)
        relation = question.relation.cut(chunks)
        group = symmetries(self.wiring, relation)
        name = f"sccl({chunks}, {steps}, {rounds})"
        for symmetric in (group, group[:1]) if len(group) > 1 else (group,):
            model = StepModel(self.wiring, relation, steps, rounds, self.unit, symmetric)
            solution = model.solve(until - time.monotonic())
            if solution.values is not None:
                program, step_rounds = model.schedule(solution.values, name)
                facts = self.least.steps, self.rounds_per_chunk
                return Answer(Schedule(program, chunks, steps, step_rounds, *facts))
            if solution.is_infeasible and len(symmetric) == 1:
                return Answer(None, is_proved_impossible=True)
        return Answer(None)


def _combinations(steps: int, extra: int, most: int, least: float, best: Fraction | None) -> list[tuple[int, int]]:
    """Return (rounds, chunks) by rounds per chunk, with so many extra rounds and so many chunks at most: not below the
    least that is possible, and below the best so far."""
    found: dict[Fraction, tuple[int, int]] = {}
    for rounds in range(steps, steps + extra + 1):
        for chunks in range(1, min(most, int(rounds / least + 1e-9)) + 1):
            ratio = Fraction(rounds, chunks)
            if best is None or ratio < best:
                found.setdefault(ratio, (rounds, chunks))
    return [found[ratio] for ratio in sorted(found)]

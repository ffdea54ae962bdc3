"""SCCL's question as a mixed-integer programme: so many chunks, so many steps, so many rounds?"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from laconic.collective.program import COPY, Program
from laconic.collective.relation import Relation
from laconic.collective.sends import Send
from laconic.collective.synthesis.model import Model, Solution
from laconic.collective.synthesis.symmetry import Symmetry, classes
from laconic.collective.synthesis.wiring import Wiring


class StepModel:
    """The programme: whether a chunk is sent over a way in a step, and whether a rank holds it before a step.

    A chunk arrives once where it must be and at most once elsewhere, is sent only from where it is, and a limit of b
    chunks per round carries at most b times the rounds of the step. Choices that a group of symmetries moves onto each
    other are one.
    """

    def __init__(
        self, wiring: Wiring, relation: Relation, steps: int, rounds: int, per_second: float, group: list[Symmetry]
    ) -> None:
        self.wiring, self.relation, self.steps = wiring, relation, steps
        self.model = Model()
        self.rounds = [self.model.variable(1, rounds - steps + 1, whole=True) for _ in range(steps)]
        self.model.row([(r, 1.0) for r in self.rounds], rounds, rounds)
        self._group = group
        self._number()
        self._arrivals()
        self._limits(per_second)

    def solve(self, seconds: float) -> Solution:
        """Ask the solver for any solution."""
        return self.model.solve(seconds)

    def schedule(self, values: np.ndarray, name: str) -> tuple[Program, tuple[int, ...]]:
        """Return the program that a solution describes, and the rounds of its steps."""
        chosen = {number for number in self._sent.values() if values[number] > 0.5}
        rows: list[Send] = []
        ways = self.wiring.ends.tolist()
        for chunk in range(self.relation.chunks):
            for way, (source, destination) in enumerate(ways):
                for step in range(self.steps):
                    if self._sent.get((int(self._choice[chunk, way]), step)) in chosen:
                        rows.append((step, source, destination, chunk, COPY))
        rows = useful(self.relation, rows)
        return Program.of(name, self.relation, rows), tuple(round(values[r]) for r in self.rounds)

    def _number(self) -> None:
        """Number one choice of each class, leaving out those that come too early or too late to be of use."""
        relation, wiring = self.relation, self.wiring
        chunks, count, size = relation.chunks, len(wiring.ends), wiring.size
        pairs, places = np.arange(chunks * count), np.arange(chunks * size)
        self._choice = classes([g.chunks[pairs // count] * count + g.ways[pairs % count] for g in self._group]).reshape(
            chunks, count
        )
        self._place = classes([g.chunks[places // size] * size + g.ranks[places % size] for g in self._group]).reshape(
            chunks, size
        )
        before, after = np.zeros((2, chunks, size), dtype=bool)
        before[relation.before % chunks, relation.before // chunks] = True
        after[relation.after % chunks, relation.after // chunks] = True
        self._before, self._after = before, after
        far = np.where(wiring.hops < 0, size + self.steps, wiring.hops)
        reached = np.stack([far[row].min(axis=0) for row in before])  # by chunk and rank, the fewest hops to it
        needed = np.stack([far[:, row].min(axis=1) for row in after])  # and from it to where it must be
        self._sent: dict[tuple[int, int], int] = {}
        self._early, self._late = reached, needed
        for pair in np.unique(self._choice).tolist():
            chunk, way = divmod(pair, count)
            source, destination = wiring.ends[way]
            if before[chunk, destination]:
                continue
            for step in range(int(reached[chunk, source]), self.steps - int(needed[chunk, destination])):
                self._sent[pair, step] = self.model.variable(whole=True)

    def _arrivals(self) -> None:
        """What a rank holds before a step is what it held before the last and what arrived in it."""
        model, wiring, steps = self.model, self.wiring, self.steps
        held: dict[tuple[int, int], int] = {}
        for place in np.unique(self._place).tolist():
            chunk, rank = divmod(place, wiring.size)
            if self._before[chunk, rank]:
                continue
            inward = [int(self._choice[chunk, way]) for way in wiring.into[rank]]
            for step in range(min(int(self._early[chunk, rank]), steps), steps + 1):
                must = step == steps and self._after[chunk, rank]
                now = held[place, step] = model.variable(lower=float(must))
                terms = [(now, 1.0)]
                if (place, step - 1) in held:
                    terms.append((held[place, step - 1], -1.0))
                terms += [(self._sent[pair, step - 1], -1.0) for pair in inward if (pair, step - 1) in self._sent]
                model.row(terms, 0.0, 0.0)
        for (pair, step), sent in self._sent.items():
            chunk, way = divmod(pair, len(wiring.ends))
            source = int(wiring.ends[way, 0])
            if not self._before[chunk, source]:
                model.row([(sent, 1.0), (held[int(self._place[chunk, source]), step], -1.0)], high=0.0)

    def _limits(self, per_second: float) -> None:
        """What shares a link in a step is no more than the step's rounds allow."""
        seen = set()
        for members, rate in self.wiring.limits:
            if frozenset(members.tolist()) in seen:
                continue
            seen |= {frozenset(g.ways[members].tolist()) for g in self._group}
            for step in range(self.steps):
                load: dict[int, float] = defaultdict(float)
                for pair in self._choice[:, members].ravel().tolist():
                    if (pair, step) in self._sent:
                        load[self._sent[pair, step]] += 1.0
                if load:
                    self.model.row([*load.items(), (self.rounds[step], -rate / per_second)], high=1e-6)


def useful(relation: Relation, rows: list[Send]) -> list[Send]:
    """Return the sends without those of which nothing comes: a chunk that is neither asked for nor sent on."""
    chunks = relation.chunks
    wanted = set(relation.after.tolist())
    kept = []
    for row in sorted(rows, reverse=True):
        _, source, destination, chunk, _ = row
        if destination * chunks + chunk in wanted:
            wanted.add(source * chunks + chunk)
            kept.append(row)
    return kept[::-1]

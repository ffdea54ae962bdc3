"""`laconic plan --verify`: short trainings of the user's own script, so that accuracy is seen before it is paid for.

Successive halving: all candidates train side by side, step by step, each on virtual workers in a process of its own;
after each round the worse half leaves, and the others go on from where they are. Rounds share the budget of wall-clock
time equally. Candidates are compared at equal steps, since what a step takes the plan says already.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic

from laconic.errors import LaconicError
from laconic.launch.request import Request
from laconic.planner.entrant import Entrant
from laconic.planner.stepping import SteppedRun
from laconic.planner.verified import Trained, Verified
from laconic.units import seconds

Progress = Callable[[float, str], None]
"""Told the share of the budget that is spent, and what is going on."""

_LOOK_SECONDS = 0.1
_CLOSING = 0.05  # of the budget, for ending processes
_STARTING = 0.5  # of the budget, at most, until all have reached their first step
_PORTIONS = 4  # grants of steps in a round, about


class VerifyError(LaconicError, ValueError):
    """Candidates that cannot be trained, or a script that does not say how well they learn."""


def read_budget(text: str | float) -> float:
    """Seconds, from "120s", "5min", "1h" or a number."""
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*(min|h)\s*", text) if isinstance(text, str) else None
    return float(found[1]) * {"min": 60, "h": 3600}[found[2]] if found else seconds(text)


def verify(
    command: Sequence[str],
    strategies: Sequence[str],
    workers: int,
    network: str | None = None,
    profile: str | None = None,
    budget_seconds: float = 120.0,
    progress: Progress = lambda share, what: None,
    metric: str = "loss",
    seeds: Sequence[int] = (),
    seed_argument: str = "--seed",
    parallel: int | None = None,
) -> Verified:
    """Train the script with each strategy for as long as the budget allows; the first is the baseline, which stays.

    `network` is a file or a rate and `profile` a file, as `laconic run --engine virtual` takes them. With `seeds` the
    script is also given `--seed N` for each, and losses are means over them. `parallel` processes compute at a time.
    """
    if not budget_seconds > 0:
        raise VerifyError(f"a budget of {budget_seconds:g} s trains nothing: give --verify 120s, for example")
    if not strategies:
        raise VerifyError("there is no strategy to verify: give at least the baseline")
    at_once = parallel or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="laconic-") as folder:
        entrants = [Entrant(text) for text in dict.fromkeys(strategies)]

        def begin(entrant: Entrant, seed: int | None) -> SteppedRun:
            number = sum(len(one.runs) for one in entrants)
            more = () if seed is None else (seed_argument, str(seed))
            own = Path(folder) / str(number)
            request = Request(
                command=(*command, *more),
                workers=workers,
                strategy=entrant.strategy,
                engine="virtual",
                network=network,
                profile=profile,
                folder=str(own),
                gate=f"{own}.gate",
            )
            return SteppedRun(entrant.strategy, request, own, metric)

        contest = _Contest(entrants, budget_seconds, progress, at_once, metric, str(command[0]))
        try:
            contest.start(begin, tuple(seeds) or (None,))
            contest.carry_out()
        finally:
            for entrant in entrants:
                entrant.close()
        return Verified(
            tuple(command),
            workers,
            network,
            profile,
            metric,
            budget_seconds,
            contest.spent_seconds,
            entrants[0].strategy,
            tuple(seeds),
            contest.ranked(),
        )


class _Contest:
    """All entrants, and the clock on the wall."""

    def __init__(
        self, entrants: list[Entrant], budget: float, progress: Progress, at_once: int, metric: str, script: str
    ) -> None:
        self._entrants, self._progress, self._at_once = entrants, progress, at_once
        self._metric, self._script, self._budget = metric, script, budget
        self._begin = monotonic()
        self._end = self._begin + budget * (1 - _CLOSING)
        self._inside = list(entrants)
        self._goal, self._step_seconds = 0, 0.0  # what a step of everybody took, last time

    @property
    def spent_seconds(self) -> float:
        return monotonic() - self._begin

    def start(self, begin: Callable[[Entrant, int | None], SteppedRun], seeds: Sequence[int | None]) -> None:
        """Bring everybody to the gate before the first step, a few at a time; who is late stays out."""
        limit = self._begin + self._budget * _STARTING
        waiting = [(entrant, seed) for entrant in self._entrants for seed in seeds]
        starting: list[SteppedRun] = []
        while (waiting or starting) and monotonic() < limit:
            while waiting and len(starting) < self._at_once:
                entrant, seed = waiting.pop(0)
                entrant.runs.append(begin(entrant, seed))
                starting.append(entrant.runs[-1])
                self._say(f"starting `{entrant.strategy}`")
            self._listen()
            starting = [run for run in starting if not (run.waits or run.over)]
        late = {id(run) for run in starting}
        for entrant in self._entrants:
            if len(entrant.runs) < len(seeds) or any(id(run) in late for run in entrant.runs):
                entrant.error = f"it had not begun after half of the budget of {self._budget:g} s: give a larger one"
                entrant.close()
        self._judge_baseline()

    def carry_out(self) -> None:
        rounds = max(1, math.ceil(math.log2(len(self._entrants))))
        for number in range(rounds):
            self._inside = [one for one in self._inside if not one.out_of_it]
            share = (self._end - monotonic()) / (rounds - number)
            self._round(monotonic() + share, f"round {number + 1} of {rounds}")
            if monotonic() >= self._end or all(one.finished for one in self._inside):
                break
            self._halve(last=number == rounds - 1)
        self._judge_logging()

    def _round(self, until: float, name: str) -> None:
        """Everybody goes on in a few portions of steps, until the round's time is over."""
        while monotonic() < until and any(not one.finished and not one.out_of_it for one in self._inside):
            left = until - monotonic()
            affordable = int(left / self._step_seconds) if self._step_seconds else 1
            if affordable < 1 and self._common() > 0:
                break
            portion = affordable // _PORTIONS or affordable
            self._goal = self._common() + max(1, min(portion, 4 * self._goal + 1))
            begin = monotonic()
            before = self._common()
            self._say(f"{name}: {len(self._inside)} strategies, to step {self._goal}")
            self._advance()
            made = self._common() - before
            self._step_seconds = (monotonic() - begin) / made if made > 0 else self._step_seconds
            self._judge_baseline()
            if made <= 0:
                break
        for one in self._inside:
            one.rounds += 1
            one.compared_step = self._common()

    def _advance(self) -> None:
        """Until everybody has made the goal's steps, a few at a time, or the budget is over."""
        todo = [run for one in self._inside for run in one.runs]
        while monotonic() < self._end:
            todo = [run for run in todo if not run.over and not (run.waits and run.steps >= self._goal)]
            if not todo:
                return
            busy = sum(not run.waits for run in todo)
            for run in [run for run in todo if run.waits][: max(0, self._at_once - busy)]:
                run.grant(self._goal)
            self._listen()

    def _listen(self) -> None:
        alive = [run for one in self._entrants for run in one.runs if not run.over and not run.closed]
        ready = wait([socket for run in alive for socket in run.sockets], _LOOK_SECONDS)
        for run in alive:
            run.hear(ready)
            run.look()

    def _common(self) -> int:
        return min((one.steps for one in self._inside if not one.out_of_it), default=self._goal)

    def _halve(self, last: bool) -> None:
        """The worse half leaves, once there is something to judge by; the baseline stays."""
        standing = sorted((one for one in self._inside if not one.out_of_it), key=Entrant.key)
        if last or any(one.at(one.compared_step) is None for one in standing):
            return
        kept = standing[: math.ceil(len(standing) / 2)]
        baseline = self._entrants[0]
        self._inside = [*kept, *([baseline] if baseline in standing and baseline not in kept else [])]
        for one in standing:
            if one not in kept and one.lost is None:
                one.lost = one.rounds, one.compared_step
        for one in self._entrants:
            if one not in self._inside:
                one.close()

    def _judge_baseline(self) -> None:
        baseline = self._entrants[0]
        if baseline.failure is not None:
            raise VerifyError(f"the baseline `{baseline.strategy}` does not train: {baseline.failure}")
        if baseline.finished:
            self._judge_logging()

    def _judge_logging(self) -> None:
        runs = [run for one in self._entrants for run in one.runs]
        if any(run.logged for run in runs):
            return
        others = sorted({name for run in runs for name in run.other_metrics})
        steps = max((run.steps for run in runs), default=0)
        advice = (
            f"it logs {', '.join(others)}: name one of these as the metric"
            if others
            else f"add the line `laconic.log({self._metric}=loss.item())` after `loss.backward()` in its loop"
        )
        raise VerifyError(
            f"{self._script} made {steps} steps and rank 0 logged no {self._metric}, so nothing can be compared: "
            f"{advice}, or give a larger budget if it logs later"
        )

    def ranked(self) -> tuple[Trained, ...]:
        order = sorted(self._entrants, key=Entrant.key)
        return tuple(one.trained(rank) for rank, one in enumerate(order, 1))

    def _say(self, what: str) -> None:
        self._progress(min(1.0, self.spent_seconds / self._budget), what)

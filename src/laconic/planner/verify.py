"""`laconic plan --verify`: short trainings of the user's own script show a strategy's accuracy before a full run.

This is successive halving: all strategies train side by side, each on virtual workers in its own process; after each
round the worse half is eliminated, and the others continue. The first round is as long as the shortest training that
was shown to predict, where one is known: nobody is eliminated before. Rounds share the rest of the wall-clock budget
equally. Strategies are compared at equal steps, since the plan already says how long a step takes.
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
from laconic.planner.stepped_run import SteppedRun
from laconic.planner.trial_training import TrialTraining
from laconic.planner.verify_results import Trained, Verified
from laconic.units import seconds

Progress = Callable[[float, str], None]
"""A function that is called with the share of the budget that is spent and a description of what is running."""

_POLL_SECONDS = 0.1
_CLOSING = 0.05  # share of the budget kept for ending processes
_STARTING = 0.5  # share of the budget within which a run must reach its first step
_PORTIONS = 4  # approximate number of grants of steps in a round


class VerifyError(LaconicError, ValueError):
    """An error about strategies that cannot be trained, or a script that does not log the metric."""


def read_budget(text: str | float) -> float:
    """Return the seconds of a budget such as "120s", "5min", "1h" or a number."""
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
    least_steps: int = 0,
) -> Verified:
    """Train the script with each strategy while the budget allows; the first is the baseline, which is always kept.

    `network` is a file or a rate and `profile` a file, as `laconic run --engine virtual` takes them. With `seeds` the
    script is also given `--seed N` for each, and losses are means over them. `parallel` processes compute at a time.
    None is eliminated before it has made `least_steps`.
    """
    if not budget_seconds > 0:
        raise VerifyError(f"a budget of {budget_seconds:g} s trains nothing: give --verify 120s, for example")
    if not strategies:
        raise VerifyError("there is no strategy to verify: give at least the baseline")
    at_once = parallel or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="laconic-") as folder:
        trainings = [TrialTraining(text) for text in dict.fromkeys(strategies)]

        def begin(training: TrialTraining, seed: int | None) -> SteppedRun:
            number = sum(len(one.runs) for one in trainings)
            more = () if seed is None else (seed_argument, str(seed))
            own = Path(folder) / str(number)
            request = Request(
                command=(*command, *more),
                workers=workers,
                strategy=training.strategy,
                engine="virtual",
                network=network,
                profile=profile,
                folder=str(own),
                gate=f"{own}.gate",
            )
            return SteppedRun(training.strategy, request, own, metric)

        halving = _SuccessiveHalving(trainings, budget_seconds, progress, at_once, metric, str(command[0]), least_steps)
        try:
            halving.start(begin, tuple(seeds) or (None,))
            halving.carry_out()
        finally:
            for training in trainings:
                training.close()
        return Verified(
            tuple(command),
            workers,
            network,
            profile,
            metric,
            budget_seconds,
            halving.spent_seconds,
            trainings[0].strategy,
            tuple(seeds),
            halving.ranked(),
            least_steps,
        )


class _SuccessiveHalving:
    """Successive halving of all strategies under a budget of wall-clock time."""

    def __init__(
        self,
        trainings: list[TrialTraining],
        budget: float,
        progress: Progress,
        at_once: int,
        metric: str,
        script: str,
        least_steps: int,
    ) -> None:
        self._trainings, self._progress, self._at_once = trainings, progress, at_once
        self._least_steps = least_steps
        self._metric, self._script, self._budget = metric, script, budget
        self._begin = monotonic()
        self._end = self._begin + budget * (1 - _CLOSING)
        self._remaining = list(trainings)
        self._goal, self._step_seconds = 0, 0.0  # what a step of all runs took, last time

    @property
    def spent_seconds(self) -> float:
        return monotonic() - self._begin

    def start(self, begin: Callable[[TrialTraining, int | None], SteppedRun], seeds: Sequence[int | None]) -> None:
        """Start all runs, a few at a time, until they wait before their first step; slow starters are dropped."""
        limit = self._begin + self._budget * _STARTING
        waiting = [(training, seed) for training in self._trainings for seed in seeds]
        starting: list[SteppedRun] = []
        while (waiting or starting) and monotonic() < limit:
            while waiting and len(starting) < self._at_once:
                training, seed = waiting.pop(0)
                training.runs.append(begin(training, seed))
                starting.append(training.runs[-1])
                self._report(f"starting `{training.strategy}`")
            self._receive()
            starting = [run for run in starting if not (run.waiting or run.over)]
        not_started = {id(run) for run in starting}
        for training in self._trainings:
            if len(training.runs) < len(seeds) or any(id(run) in not_started for run in training.runs):
                training.error = f"it had not begun after half of the budget of {self._budget:g} s: give a larger one"
                training.close()
        self._check_baseline()

    def carry_out(self) -> None:
        """Run all rounds, until one strategy is left, the budget is over or all scripts have ended."""
        rounds = max(1, math.ceil(math.log2(len(self._trainings))))
        for number in range(rounds):
            self._remaining = [one for one in self._remaining if not one.failed_or_diverged]
            name, left = f"round {number + 1} of {rounds}", self._end - monotonic()
            if number == 0 and self._least_steps:
                self._round(self._end, name, self._least_steps)
            else:
                self._round(monotonic() + left / (rounds - number), name)
            if monotonic() >= self._end or all(one.finished for one in self._remaining):
                break
            self._halve(last=number == rounds - 1)
        self._check_logging()

    def _round(self, until: float, name: str, steps: int | None = None) -> None:
        """Advance all remaining strategies in a few portions of steps, until the round's time is over or they have made
        so many steps."""
        most = math.inf if steps is None else steps
        while (
            monotonic() < until
            and self._common() < most
            and any(not one.finished and not one.failed_or_diverged for one in self._remaining)
        ):
            left = until - monotonic()
            affordable = int(left / self._step_seconds) if self._step_seconds else 1
            if affordable < 1 and self._common() > 0:
                break
            portion = affordable // _PORTIONS or affordable
            self._goal = int(min(most, self._common() + max(1, min(portion, 4 * self._goal + 1))))
            begin = monotonic()
            before = self._common()
            self._report(f"{name}: {len(self._remaining)} strategies, to step {self._goal}")
            self._advance()
            made = self._common() - before
            self._step_seconds = (monotonic() - begin) / made if made > 0 else self._step_seconds
            self._check_baseline()
            if made <= 0:
                break
        for one in self._remaining:
            one.rounds += 1
            one.compared_step = self._common()

    def _advance(self) -> None:
        """Grant steps, to a few runs at a time, until all have reached the goal or the budget is over."""
        todo = [run for one in self._remaining for run in one.runs]
        while monotonic() < self._end:
            todo = [run for run in todo if not run.over and not (run.waiting and run.steps >= self._goal)]
            if not todo:
                return
            busy = sum(not run.waiting for run in todo)
            for run in [run for run in todo if run.waiting][: max(0, self._at_once - busy)]:
                run.grant(self._goal)
            self._receive()

    def _receive(self) -> None:
        alive = [run for one in self._trainings for run in one.runs if not run.over and not run.closed]
        ready = wait([socket for run in alive for socket in run.sockets], _POLL_SECONDS)
        for run in alive:
            run.receive(ready)
            run.check_exit()

    def _common(self) -> int:
        return min((one.steps for one in self._remaining if not one.failed_or_diverged), default=self._goal)

    def _halve(self, last: bool) -> None:
        """Eliminate the worse half if every strategy has a value to compare; the baseline continues in any case."""
        standing = sorted((one for one in self._remaining if not one.failed_or_diverged), key=TrialTraining.key)
        early = self._common() < self._least_steps and not all(one.finished for one in standing)
        if last or early or any(one.at(one.compared_step) is None for one in standing):
            return
        kept = standing[: math.ceil(len(standing) / 2)]
        baseline = self._trainings[0]
        self._remaining = [*kept, *([baseline] if baseline in standing and baseline not in kept else [])]
        for one in standing:
            if one not in kept and one.eliminated_at is None:
                one.eliminated_at = one.rounds, one.compared_step
        for one in self._trainings:
            if one not in self._remaining:
                one.close()

    def _check_baseline(self) -> None:
        baseline = self._trainings[0]
        if baseline.failure is not None:
            raise VerifyError(f"the baseline `{baseline.strategy}` does not train: {baseline.failure}")
        if baseline.finished:
            self._check_logging()

    def _check_logging(self) -> None:
        runs = [run for one in self._trainings for run in one.runs]
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
        order = sorted(self._trainings, key=TrialTraining.key)
        return tuple(one.trained(rank) for rank, one in enumerate(order, 1))

    def _report(self, what: str) -> None:
        self._progress(min(1.0, self.spent_seconds / self._budget), what)

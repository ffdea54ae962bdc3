"""Successive halving: all strategies train side by side, and after each round the worse half is eliminated.

Strategies continue from where they are, so that a round costs no more than its own steps. Phases, which end at shares
of a run, cannot: what they do by a step depends on how long the run will be. Each round trains them anew, with phases
scaled to the steps that the others have made by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from time import monotonic

from laconic.errors import StrategyError
from laconic.planner.stepped_run import SteppedRun
from laconic.planner.trial_training import TrialTraining
from laconic.planner.verify_results import Trained, VerifyError

Progress = Callable[[float, str], None]
"""A function that is called with the share of the budget that is spent and a description of what is running."""
Begin = Callable[[str, int | None], SteppedRun]
"""A function that begins a run by a sentence and with a seed."""

_POLL_SECONDS = 0.1
_CLOSING = 0.05  # share of the budget kept for ending processes
_STARTING = 0.5  # share of the budget within which a run must reach its first step
_PORTIONS = 4  # approximate number of grants of steps in a round


class SuccessiveHalving:
    """Successive halving of all strategies under a budget of wall-clock time."""

    def __init__(
        self,
        trainings: list[TrialTraining],
        begin: Begin,
        seeds: Sequence[int | None],
        budget: float,
        progress: Progress,
        at_once: int,
        metric: str,
        script: str,
        least_steps: int,
    ) -> None:
        self._trainings, self._progress, self._at_once = trainings, progress, at_once
        self._begin_run, self._seeds = begin, seeds
        self._least_steps = least_steps
        self._metric, self._script, self._budget = metric, script, budget
        self._begin = monotonic()
        self._end = self._begin + budget * (1 - _CLOSING)
        self._remaining = list(trainings)
        self._goal, self._step_seconds = 0, 0.0  # what a step of all runs took, last time
        self._starting_seconds = 0.0  # of one run

    @property
    def spent_seconds(self) -> float:
        return monotonic() - self._begin

    def start(self) -> None:
        """Start all runs, a few at a time, until they wait before their first step; slow starters are dropped. Phases
        are started when the length of a round is known."""
        limit = self._begin + self._budget * _STARTING
        continuing = [one for one in self._trainings if one.phases is None]
        waiting = [(training, seed) for training in continuing for seed in self._seeds]
        count = len(waiting)
        starting: list[SteppedRun] = []
        while (waiting or starting) and monotonic() < limit:
            while waiting and len(starting) < self._at_once:
                training, seed = waiting.pop(0)
                training.runs.append(self._begin_run(training.strategy, seed))
                starting.append(training.runs[-1])
                self._report(f"starting `{training.strategy}`")
            self._receive()
            starting = [run for run in starting if not (run.waiting or run.over)]
        self._starting_seconds = self.spent_seconds / count
        not_started = {id(run) for run in starting}
        for training in continuing:
            if len(training.runs) < len(self._seeds) or any(id(run) in not_started for run in training.runs):
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
        so many steps; then train those with phases as long."""
        most = math.inf if steps is None else steps
        while (
            monotonic() < until
            and self._common() < most
            and any(not one.finished and not one.failed_or_diverged for one in self._continuing)
        ):
            affordable = self._affordable(until)
            if affordable < 1 and self._common() > 0:
                break
            portion = affordable // _PORTIONS or affordable
            self._goal = int(min(most, self._common() + max(1, min(portion, 4 * self._goal + 1))))
            begin = monotonic()
            before = self._common()
            self._report(f"{name}: {len(self._remaining)} strategies, to step {self._goal}")
            self._advance([run for one in self._continuing for run in one.runs], self._goal)
            made = self._common() - before
            self._step_seconds = (monotonic() - begin) / made if made > 0 else self._step_seconds
            self._check_baseline()
            if made <= 0:
                break
        for one in [*self._continuing, *(one for one in self._phased if self._train_anew(one, name))]:
            one.rounds += 1
            one.compared_step = self._common()

    def _affordable(self, until: float) -> int:
        """Return how many more steps all can make until then, if those with phases begin at their first step again."""
        if not self._step_seconds:
            return 1
        anew, runs = len(self._phased), len(self._seeds)
        left = until - monotonic() - anew * runs * self._starting_seconds
        share = anew / max(1, len(self._continuing))
        return int((left / self._step_seconds - share * self._common()) / (1 + share))

    def _train_anew(self, training: TrialTraining, name: str) -> bool:
        """Train phases, scaled to the steps that the others have made, from the start; return whether they have made
        them before the budget was over."""
        steps = self._common()
        if training.runs and training.compared_step == steps:
            return True
        self._report(f"{name}: `{training.strategy}` to step {steps}")
        try:
            sentence = training.at_length(steps)
        except StrategyError:
            training.error = f"its phases do not fit into {steps} steps: give a larger budget than {self._budget:g} s"
            return False
        goal = self._goal if all(one.finished for one in self._continuing) else steps
        todo = list(self._seeds)
        while todo and monotonic() < self._end:
            some, todo = todo[: self._at_once], todo[self._at_once :]
            training.again += [self._begin_run(sentence, seed) for seed in some]
            self._advance(training.again, goal)
        replaced = training.settle(steps, len(self._seeds))
        if not training.runs:
            training.error = f"its phases were not trained within the budget of {self._budget:g} s: give a larger one"
        return replaced

    @property
    def _continuing(self) -> list[TrialTraining]:
        """The remaining strategies that go on from where they are."""
        return [one for one in self._remaining if one.phases is None]

    @property
    def _phased(self) -> list[TrialTraining]:
        """The remaining strategies whose phases are shares of a run."""
        return [one for one in self._remaining if one.phases is not None and not one.failed_or_diverged]

    def _advance(self, runs: Sequence[SteppedRun], goal: int) -> None:
        """Grant steps, to a few runs at a time, until all have reached the goal or the budget is over."""
        todo = list(runs)
        while monotonic() < self._end:
            todo = [run for run in todo if not run.over and not (run.waiting and run.steps >= goal)]
            if not todo:
                return
            busy = sum(not run.waiting for run in todo)
            for run in [run for run in todo if run.waiting][: max(0, self._at_once - busy)]:
                run.grant(goal)
            self._receive()

    def _receive(self) -> None:
        alive = [run for one in self._trainings for run in one.every_run if not run.over and not run.closed]
        ready = wait([socket for run in alive for socket in run.sockets], _POLL_SECONDS)
        for run in alive:
            run.receive(ready)
            run.check_exit()

    def _common(self) -> int:
        return min((one.steps for one in self._continuing if not one.failed_or_diverged), default=self._goal)

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

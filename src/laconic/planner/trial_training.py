"""The short trainings of one strategy in `laconic plan --verify`: its runs, their progress and how they compare."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from laconic.planner.phases import rescaled
from laconic.planner.stepped_run import SteppedRun
from laconic.planner.verify_results import Logged, Point, Trained, curve_of, point_of
from laconic.strategy import Strategy


@dataclass(eq=False)
class TrialTraining:
    """One strategy under verification, with a run for each seed.

    Phases that end at shares of a run are trained anew in each round, scaled to its length: `phases` is then the
    strategy in a run of `run_steps`, and `again` are the runs of the round that is under way.
    """

    strategy: str
    runs: list[SteppedRun] = field(default_factory=list)
    phases: Strategy | None = None
    run_steps: int | None = None
    again: list[SteppedRun] = field(default_factory=list)
    rounds: int = 0
    compared_step: int = 0
    eliminated_at: tuple[int, int] | None = None  # (round, step) at which it was first in the worse half
    error: str | None = None

    @property
    def steps(self) -> int:
        return min((run.steps for run in self.runs), default=0)

    @property
    def every_run(self) -> Iterator[SteppedRun]:
        """The runs of this round and of the one before."""
        yield from (*self.runs, *self.again)

    def at_length(self, steps: int) -> str:
        """Return the sentence of a run of so many steps: phases keep their shares."""
        return self.strategy if self.phases is None else str(rescaled(self.phases, self.run_steps, steps))

    def settle(self, steps: int, seeds: int) -> bool:
        """End the runs of the round before where those that were made anew have replaced them, by making so many steps
        with all seeds or by failing; else end the new ones. Return whether they are replaced."""
        complete = len(self.again) == seeds and all(run.over or run.steps >= steps for run in self.again)
        replaced = complete or any(run.error or run.diverged for run in self.again)
        for run in self.runs if replaced else self.again:
            run.close()
        self.runs, self.again = (self.again if replaced else self.runs), []
        return replaced

    @property
    def failure(self) -> str | None:
        return self.error or next((run.error for run in self.runs if run.error), None)

    @property
    def diverged(self) -> str | None:
        return next((reason for run in self.runs if (reason := run.diverged)), None)

    @property
    def finished(self) -> bool:
        return bool(self.runs) and all(run.over and not run.error for run in self.runs)

    @property
    def failed_or_diverged(self) -> bool:
        """Whether the strategy takes no further part because a run failed or diverged."""
        return self.failure is not None or self.diverged is not None

    def at(self, step: int) -> Point | None:
        """Return the mean of the last third of the values logged up to a step, equally many of each seed, if any."""
        parts = [
            _last_third([at for at in run.logged if at.step <= step and math.isfinite(at.value)]) for run in self.runs
        ]
        count = min(map(len, parts), default=0)
        return point_of([part[-count:] for part in parts]) if count else None

    def key(self) -> tuple[float, ...]:
        """Return the sort key, the best first: never eliminated, eliminated latest, least loss.

        A baseline that would have been eliminated goes on for comparison, but ranks as eliminated.
        """
        rounds, step = self.eliminated_at or (self.rounds, self.compared_step)
        here = self.at(step)
        ahead = (self.failure is not None, self.diverged is not None, self.eliminated_at is not None)
        return (*ahead, -rounds, here.loss if here else math.inf)

    def trained(self, rank: int) -> Trained:
        """Return the result of this strategy as a plain value."""
        here = self.at(self.compared_step) if self.failure is None else None
        return Trained(
            strategy=self.strategy,
            rank=rank,
            steps=self.steps,
            loss=None if here is None else here.loss,
            low=None if here is None else here.low,
            high=None if here is None else here.high,
            compared_step=self.compared_step,
            rounds=self.rounds,
            finished=self.finished,
            curve=curve_of([run.logged for run in self.runs]),
            diverged=self.diverged,
            error=self.failure,
            trained_as="" if self.phases is None or not self.runs else self.runs[0].strategy,
        )

    def close(self) -> None:
        """End all runs."""
        for run in self.every_run:
            run.close()


def _last_third(values: list[Logged]) -> list[Logged]:
    return values[-max(1, len(values) // 3) :] if values else []

"""The results of short trainings of the user's own script, as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from laconic.errors import LaconicError


class VerifyError(LaconicError, ValueError):
    """An error about strategies that cannot be trained, or a script that does not log the metric."""


@dataclass(frozen=True)
class Point:
    """The loss after so many steps, seconds of virtual time and bytes that a worker sent.

    `low` and `high` are over seeds or, with one seed, over the two halves of the values that the point is the mean of.
    """

    step: int
    seconds: float
    sent_bytes: float
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class Trained:
    """The result of one strategy's short training; `rank` 1 is the best, those that failed or diverged are last."""

    strategy: str
    rank: int
    steps: int  # of one worker
    loss: float | None  # at `compared_step`; None: it was not reached
    low: float | None
    high: float | None
    compared_step: int  # at which it and those eliminated in the same round were compared
    rounds: int  # in which it was trained
    finished: bool  # the script came to its own end
    curve: tuple[Point, ...] = ()
    diverged: str | None = None  # a sentence
    error: str | None = None  # a sentence
    trained_as: str = ""  # the strategy with its phases scaled to `compared_step`; empty: as it is

    def loss_at(self, seconds: float) -> float | None:
        """Return the loss at a time, interpolated in its curve; None before the first point and after the last."""
        for before, after in pairwise(self.curve):
            if before.seconds <= seconds <= after.seconds:
                share = (seconds - before.seconds) / ((after.seconds - before.seconds) or 1.0)
                return before.loss + share * (after.loss - before.loss)
        return next((point.loss for point in self.curve if point.seconds == seconds), None)


@dataclass(frozen=True)
class Verified:
    """The results of all strategies, the best first, compared at equal steps; the baseline is trained to the end."""

    command: tuple[str, ...]
    workers: int
    network: str | None
    profile: str | None
    metric: str
    budget_seconds: float
    spent_seconds: float
    baseline: str
    seeds: tuple[int, ...]
    trained: tuple[Trained, ...]
    least_steps: int = 0  # before which none was eliminated; 0: no length was shown to predict
    left_out: tuple[str, ...] = ()  # sentences about strategies that no short training predicts

    @property
    def reached(self) -> bool:
        """Whether all that were not dropped were trained as long as was shown to predict."""
        kept = [one for one in self.trained if one.error is None and one.diverged is None]
        return all(one.finished or one.steps >= self.least_steps for one in kept)

    @property
    def best(self) -> Trained:
        return self.trained[0]

    def of(self, strategy: str) -> Trained:
        """Return the result of one strategy."""
        return next(one for one in self.trained if one.strategy == strategy)

    def to_json(self) -> str:
        """Return the results as JSON; numbers that are not finite, which JSON cannot express, become null."""
        return json.dumps(_finite({"laconic_verified": 1, **asdict(self)}), indent=1, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Logged:
    """A value that the script passed to `laconic.log`, with the step, time and bytes at that moment."""

    step: int
    seconds: float
    sent_bytes: float
    value: float


def curve_of(runs: Sequence[Sequence[Logged]], points: int = 24) -> tuple[Point, ...]:
    """Return the runs of one strategy (one for each seed) as a curve of at most so many points, means of neighbours."""
    values = min((sum(math.isfinite(at.value) for at in run) for run in runs), default=0)
    finite = [[at for at in run if math.isfinite(at.value)][:values] for run in runs]
    count = min(points, values)
    cuts = [values * k // count for k in range(count + 1)] if count else []
    return tuple(point_of([run[a:b] for run in finite]) for a, b in pairwise(cuts))


def point_of(runs: Sequence[Sequence[Logged]]) -> Point:
    """Return the point that averages a few neighbouring values, equally many of each seed."""
    first = runs[0]
    means = [_mean([at.value for at in run]) for run in runs]
    middle = len(first) // 2
    halves = [_mean([at.value for at in part]) for part in (first[:middle], first[middle:]) if part]
    spread = means if len(runs) > 1 else halves
    return Point(
        step=round(_mean([at.step for at in first])),
        seconds=_mean([at.seconds for run in runs for at in run]),
        sent_bytes=_mean([at.sent_bytes for run in runs for at in run]),
        loss=_mean(means),
        low=min(spread),
        high=max(spread),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

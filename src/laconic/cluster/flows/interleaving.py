"""Phases of jobs that share a link, shifted so that one sends while the others compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ClusterError

POINTS = 72
"""Into how many equal parts the shortest iteration is divided: five degrees of its circle each."""
MOST_POINTS = 1_000_000
"""Parts of the longest circle that is looked at."""


class Phases(NamedTuple):
    """An iteration of a job that is alone on the link: it computes, and then sends at the link's rate."""

    compute_seconds: float
    send_seconds: float

    @property
    def seconds(self) -> float:
        """The seconds of one iteration of the job alone: computing, and then sending."""
        return self.compute_seconds + self.send_seconds


class Interleaved(NamedTuple):
    """By how many seconds each job is to begin later than the first could, and how well they fit together then: 1 where
    no two ever send at once, less by the share of the time in which others would have to wait for the link."""

    shifts: tuple[float, ...]
    compatibility: float


def interleave(jobs: Sequence[Phases]) -> Interleaved:
    """Return the shifts with which jobs that share a link send at the same time as little as they can.

    Iterations are rolled around a circle that is a common multiple of them all, and one job after another is turned to
    where it meets the others least, until no turn helps: the geometry of CASSINI (Rajasekaran et al., NSDI 2024), which
    solves for the angles by a program. The jobs must keep their periods: whoever falls behind has to wait for its next
    turn.

    - `jobs`: their phases.
    """
    if not jobs or min(one.compute_seconds for one in jobs) < 0 or min(one.send_seconds for one in jobs) <= 0:
        raise ClusterError("jobs that share a link send something, and compute for no less than nothing")
    unit = min(one.seconds for one in jobs) / POINTS
    periods = [round(one.seconds / unit) for one in jobs]
    circle = math.lcm(*periods)
    if circle > MOST_POINTS:
        raise ClusterError("the jobs' iterations have no short common multiple, so that no shift keeps them apart")
    sending = [
        _around(circle, period, one.compute_seconds / unit, one.seconds / unit)
        for one, period in zip(jobs, periods, strict=True)
    ]
    turns, total = [0] * len(jobs), np.sum(sending, axis=0)
    while True:
        before = list(turns)
        for number in range(1, len(jobs)):
            others = total - np.roll(sending[number], turns[number])
            waits = [_excess(others + np.roll(sending[number], turn)) for turn in range(periods[number])]
            turns[number] = int(np.argmin(waits))
            total = others + np.roll(sending[number], turns[number])
        if turns == before:
            return Interleaved(tuple(turn * unit for turn in turns), 1 - _excess(total) / circle)


def _around(circle: int, period: int, begin: float, end: float) -> NDArray[np.float64]:
    """Return of each part of the circle the share in which a job sends."""
    edges = np.arange(period)
    once = np.clip(np.minimum(edges + 1, end) - np.maximum(edges, begin), 0.0, 1.0)
    return np.tile(once, circle // period)


def _excess(demand: NDArray[np.float64]) -> float:
    """Return how much more is wanted of the link than it carries, over the circle."""
    return float(np.maximum(demand - 1.0, 0.0).sum())

"""Time slices of trials that share a GPU: longer for those whose accuracy still rises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from laconic.errors import ClusterError


class Trend(NamedTuple):
    """How a trial's accuracy is expected to rise: by slope * exp(-decay * t) after t more seconds of GPU time.

    - `slope`: accuracy a second, now.
    - `decay`: by which part that falls in a second.
    """

    slope: float
    decay: float


def trend(curve: Sequence[tuple[float, float]], recent: int = 3) -> Trend | None:
    """Return the trend of the last points: the slopes of their earlier and later half show how it falls. None where
    there are fewer than two points.

    - `curve`: GPU seconds and the accuracy then, in this order.
    - `recent`: how many points count.
    """
    points = curve[-recent:]
    if len(points) < 2:
        return None
    middle = (len(points) - 1) // 2
    later = _slope(points[middle], points[-1])
    if not middle or not later:
        return Trend(later, 0.0)
    earlier = _slope(points[0], points[middle])
    seconds = (points[-1][0] - points[0][0]) / 2
    decay = math.log(earlier / later) / seconds if earlier > later else 0.0
    return Trend(later * math.exp(-decay * (points[-1][0] - points[middle][0]) / 2), decay)


def _slope(begin: tuple[float, float], end: tuple[float, float]) -> float:
    return max((end[1] - begin[1]) / (end[0] - begin[0]), 0.0)


def slices(trends: Sequence[Trend | None], period: float, least: float = 0.1) -> list[float]:
    """Return the slices of a period of the trials on one GPU, which sum to the period: each has a least part of an
    equal slice, and the rest is given so that the accuracy expected to be gained in it, summed, is largest. That is so
    where nobody would gain more at the end of its slice than others at the end of theirs.

    Any trend is taken to fall to its e-th part within a period at the latest. Trials without one yet count as the
    steepest, and where nobody has one or all are flat, slices are equal.

    - `trends`: of the trials.
    - `period`: in seconds.
    - `least`: of an equal slice, what each gets in any case.
    """
    if not trends or not 0 <= least <= 1:
        raise ClusterError("slices are for one trial or more, of which each gets between none and all of an equal one")
    steepest = max((one.slope for one in trends if one is not None), default=0.0)
    equal = period / len(trends)
    if steepest <= 0:
        return [equal] * len(trends)
    slopes = [steepest if one is None else one.slope for one in trends]
    decays = [max(0.0 if one is None else one.decay, 1 / period) for one in trends]
    rest = (1 - least) * period

    def given(fall: float) -> list[float]:
        """Return what each gets where all are to fall to the steepest one's slope times exp(-fall)."""
        return [
            max((math.log(slope / steepest) + fall) / decay, 0.0) if slope > 0 else 0.0
            for slope, decay in zip(slopes, decays, strict=True)
        ]

    low, high = 0.0, rest * max(decays)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(given(middle)) < rest else (low, middle)
    found = given(high)
    scale = rest / sum(found) if rest else 0.0
    return [least * equal + scale * part for part in found]


def admits(residents: Sequence[tuple[float, float]], new: tuple[float, float], memory_bytes: float) -> bool:
    """Tell whether one more trial fits: what all keep, and beside that the largest need of one iteration, as trials
    that take turns need it one after the other.

    - `residents`: what each trial that is there keeps, and needs beside that while it runs.
    - `new`: the same of the trial that would come.
    - `memory_bytes`: of the GPU.
    """
    everyone = [*residents, new]
    return sum(keeps for keeps, _ in everyone) + max(needs for _, needs in everyone) <= memory_bytes

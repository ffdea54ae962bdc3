"""From timings to the few numbers a model needs, robust against the moods of a shared machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from laconic.values.profile import OperationTimes, Point, ProfileError


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(α, β) of seconds = α + β · bytes, neither negative.

    β is the median of the slopes of all pairs, each weighted by its distance in bytes (Theil and Sen's, where long
    baselines count more: a millisecond of noise says nothing between two small messages); α is the median of the rest.
    """
    if not points:
        raise ProfileError("no timing to fit a line to: measure at least one size")
    slopes = [(max(0.0, (t - s) / (y - x)), abs(y - x)) for (x, s), (y, t) in combinations(points, 2) if x != y]
    beta = weighted_median(slopes) if slopes else 0.0
    return max(0.0, statistics.median(seconds - beta * nbytes for nbytes, seconds in points)), beta


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """The value at which half of the weight is reached; `values` are (value, weight)."""
    ordered = sorted(values)
    half, reached = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return ordered[-1][0]


def shared_seconds(alone_seconds: float, at_once_seconds: float, count: int, lanes: int) -> float:
    """How much of what all need an operation takes, from `count` of them that began at once on so many lanes.

    Lanes that disturb nobody take count/lanes times the time of one alone: then nothing can be told, and nothing is
    said. Otherwise one operation after another had what it needs.
    """
    turns = -(-count // lanes)
    each = at_once_seconds / count
    if count < 2 or lanes < 2:
        return alone_seconds
    return min(each, alone_seconds) if at_once_seconds > 1.1 * turns * alone_seconds else 0.0


def pace_beside(alone_seconds: float, computing_seconds: float, both_seconds: float) -> float:
    """How fast talking went on while computing took its time, from the end of both; never quite 0."""
    hidden = alone_seconds + computing_seconds - both_seconds
    return min(1.0, max(0.05, hidden / min(computing_seconds, alone_seconds)))


def operation_times(operation: str, dtype: str, points: Sequence[Point]) -> OperationTimes:
    """The points in order, and the line through them; a larger message costs no less than a smaller one."""
    ordered = sorted(points, key=lambda p: p.wire_bytes)
    alone = rising([p.alone_seconds for p in ordered])
    shared = rising([p.shared_seconds for p in ordered])
    made = [Point(p.wire_bytes, a, min(a, s), p.pace) for p, a, s in zip(ordered, alone, shared, strict=True)]
    alpha, beta = fit_line([(p.wire_bytes, p.alone_seconds) for p in made])
    return OperationTimes(operation, dtype, tuple(made), alpha, beta)


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that do become their mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]

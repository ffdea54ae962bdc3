"""Fits that turn timings into the few numbers a cost model needs, robust against the noise of a shared machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from laconic.values.profile import OperationTimes, Point, ProfileError


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (α, β) of seconds = α + β · bytes, neither of them negative.

    β is the median of the slopes of all pairs, each weighted by its distance in bytes (Theil and Sen's, where long
    baselines count more: a millisecond of noise says nothing between two small messages); α is the median of the rest.
    """
    if not points:
        raise ProfileError("no timing to fit a line to: measure at least one size")
    slopes = [(max(0.0, (t - s) / (y - x)), abs(y - x)) for (x, s), (y, t) in combinations(points, 2) if x != y]
    beta = weighted_median(slopes) if slopes else 0.0
    return max(0.0, statistics.median(seconds - beta * nbytes for nbytes, seconds in points)), beta


def weighted_median(values: Sequence[tuple[float, float]]) -> float:
    """Return the value at which half of the total weight is reached; `values` are pairs (value, weight)."""
    ordered = sorted(values)
    half, reached = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= half:
            return value
    return ordered[-1][0]


def shared_seconds(alone_seconds: float, at_once_seconds: float, count: int, lanes: int) -> float:
    """Return how long one operation occupies what all lanes share, from `count` operations started at once.

    Lanes that do not slow each other down take count/lanes times as long as one operation alone; then nothing is shared
    and the result is 0. Otherwise the operations had the shared resource one after another.
    """
    rounds = -(-count // lanes)
    each = at_once_seconds / count
    if count < 2 or lanes < 2:
        return alone_seconds
    return min(each, alone_seconds) if at_once_seconds > 1.1 * rounds * alone_seconds else 0.0


def pace_beside(alone_seconds: float, computing_seconds: float, both_seconds: float) -> float:
    """Return the pace of communication beside computing, as a share of its pace alone, from when both ended.

    It is at least 0.05, so that a message always ends.
    """
    hidden = alone_seconds + computing_seconds - both_seconds
    return min(1.0, max(0.05, hidden / min(computing_seconds, alone_seconds)))


def operation_times(operation: str, dtype: str, points: Sequence[Point]) -> OperationTimes:
    """Return the points in order of size and a line through them; larger messages cost no less than smaller ones."""
    ordered = sorted(points, key=lambda p: p.wire_bytes)
    alone = isotonic_regression([p.alone_seconds for p in ordered])
    shared = isotonic_regression([p.shared_seconds for p in ordered])
    made = [Point(p.wire_bytes, a, min(a, s), p.pace) for p, a, s in zip(ordered, alone, shared, strict=True)]
    alpha, beta = fit_line([(p.wire_bytes, p.alone_seconds) for p in made])
    return OperationTimes(operation, dtype, tuple(made), alpha, beta)


def isotonic_regression(values: Sequence[float]) -> list[float]:
    """Return the nearest sequence that never falls (isotonic regression by pooling adjacent violators).

    SciPy's function gives the same numbers, but takes two to six times as long for three to nine values, and importing
    it takes half a second.
    """
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]

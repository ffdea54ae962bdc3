"""The knapsack by which a planner fits a stage into a device's memory: one configuration for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence


def fastest_within(
    options: Sequence[Sequence[tuple[float, float]]], capacity: float
) -> tuple[float, tuple[int, ...]] | None:
    """Return the least sum of seconds of one option for each item whose bytes fit, and which options these are; None
    where nothing fits. Exact: sums that are beaten in both are dropped, and all others are kept.

    - `options`: for each item, (seconds, bytes) of each of its options.
    - `capacity`: the bytes that there are.
    """
    fastest = [min(range(len(of)), key=lambda i, of=of: of[i]) for of in options]  # type: ignore[misc]
    if sum(of[i][1] for of, i in zip(options, fastest, strict=True)) <= capacity:
        return sum(of[i][0] for of, i in zip(options, fastest, strict=True)), tuple(fastest)
    least_left = [0.0]
    for of in reversed(options):
        least_left.append(least_left[-1] + min(nbytes for _, nbytes in of))
    kept: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for of, rest in zip(options, reversed(least_left[:-1]), strict=True):
        sums = sorted(
            (seconds + more, nbytes + add, (*chosen, i))
            for seconds, nbytes, chosen in kept
            for i, (more, add) in enumerate(of)
            if nbytes + add + rest <= capacity
        )
        kept, lightest = [], math.inf
        for found in sums:
            if found[1] < lightest:
                kept.append(found)
                lightest = found[1]
    return (kept[0][0], kept[0][2]) if kept else None

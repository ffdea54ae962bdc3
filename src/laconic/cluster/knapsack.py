"""Knapsacks that policies ask: at most one choice for each item, whole weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def multiple_choice(values: Sequence[Sequence[float]], weights: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """Return which choice of each item is taken, counted from 1, or 0 for none, so that the sum of values is largest
    and that of weights within the capacity: exact, by dynamic programming, in time of capacity times choices.

    - `values`: of each choice of each item.
    - `weights`: whole numbers above 0.
    - `capacity`: the limit.
    """
    best = np.zeros(capacity + 1)
    taken = np.zeros((len(values), capacity + 1), dtype=np.int64)
    for item, (gains, costs) in enumerate(zip(values, weights, strict=True)):
        before = best.copy()
        for choice, (gain, cost) in enumerate(zip(gains, costs, strict=True), 1):
            if cost > capacity:
                continue
            reached = before[: capacity + 1 - cost] + gain
            better = reached > best[cost:] + 1e-12
            best[cost:][better] = reached[better]
            taken[item, cost:][better] = choice
    left, found = capacity, [0] * len(values)
    for item in reversed(range(len(values))):
        found[item] = int(taken[item, left])
        if found[item]:
            left -= weights[item][found[item] - 1]
    return found

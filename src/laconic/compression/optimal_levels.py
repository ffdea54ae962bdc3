"""Levels for which random rounding loses least of the given values, found by dynamic programming."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_CANDIDATES = 256


def optimal_levels(values: Array, count: int, most: int = _CANDIDATES) -> Array:
    """Return `count` levels, including the smallest and the largest value, that minimise the sum of (high - x)(x -
    low).

    An optimum has its levels at values, so that up to `most` different values are all tried; of more, quantiles and a
    uniform grid are tried, which includes uniform levels: the result is never worse than these.
    """
    x = np.sort(np.asarray(values, np.float64))
    candidates = np.unique(x)
    if len(candidates) > most:
        fine = (most // (2 * (count - 1))) * (count - 1) or count - 1
        grid = np.linspace(x[0], x[-1], fine + 1)
        candidates = np.union1d(grid, x[np.linspace(0, len(x) - 1, most - len(grid)).round().astype(np.int64)])
    if len(candidates) <= count:
        return np.append(candidates, np.full(count - len(candidates), candidates[-1]))
    return candidates[_chosen(_costs(x, candidates), count)]


def _costs(x: Array, candidates: Array) -> Array:
    """Return what the values between each two candidates lose to these two; x is sorted."""
    middle = x.mean()  # centred, so that squares do not cancel
    ends = np.searchsorted(x, candidates, side="right")
    centred, c = x - middle, candidates - middle
    sums = [np.append(0.0, np.cumsum(powers))[ends] for powers in (np.ones_like(x), centred, centred**2)]
    none, first, second = (s[None, :] - s[:, None] for s in sums)
    low, high = c[:, None], c[None, :]
    found: Array = np.maximum((low + high) * first - low * high * none - second, 0.0)
    return found


def _chosen(costs: Array, count: int) -> Array:
    """Return the places of `count` candidates, from the first to the last, with the least sum of costs between
    neighbours."""
    last = len(costs) - 1
    costs = np.where(np.arange(last + 1)[:, None] <= np.arange(last + 1), costs, np.inf)
    best, came = costs[0], []
    for _ in range(count - 2):
        total = best[:, None] + costs
        came.append(total.argmin(axis=0))
        best = total.min(axis=0)
    path = [last]
    for step in reversed(came):
        path.append(int(step[path[-1]]))
    return np.array([0, *reversed(path)])

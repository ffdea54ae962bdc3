"""The cheapest tree from a root that reaches all nodes along directed links (Chu and Liu, 1965; Edmonds, 1967)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError

Prices = NDArray[np.float64]


def cheapest_tree(prices: Prices, root: int) -> NDArray[np.int64]:
    """Return the parent of each node, -1 for the root, in the tree whose links cost least.

    Each node takes its cheapest link. A circle of such links is made one node, for which a link into it costs what it
    adds to the circle, and the rest is solved without it.
    """
    prices = prices.copy()
    np.fill_diagonal(prices, np.inf)
    prices[:, root] = np.inf
    parents: NDArray[np.int64] = prices.argmin(axis=0)
    cheapest = prices[parents, np.arange(len(prices))]
    parents[root], cheapest[root] = -1, 0.0
    if not np.isfinite(cheapest).all():
        raise LaconicError(f"no link leads to node {int(np.flatnonzero(~np.isfinite(cheapest))[0])}")
    circle = _circle(parents)
    if not circle:
        return parents
    outside = [node for node in range(len(prices)) if node not in circle]
    size = len(outside)
    smaller = np.full((size + 1, size + 1), np.inf)
    smaller[:size, :size] = prices[np.ix_(outside, outside)]
    entering = prices[np.ix_(outside, circle)] - cheapest[circle]
    leaving = prices[np.ix_(circle, outside)]
    smaller[:size, size], smaller[size, :size] = entering.min(axis=1), leaving.min(axis=0)
    found = cheapest_tree(smaller, outside.index(root))
    for k, parent in enumerate(found[:size].tolist()):
        if parent >= 0:
            parents[outside[k]] = outside[parent] if parent < size else circle[int(leaving[:, k].argmin())]
    into = int(found[size])
    parents[circle[int(entering[into].argmin())]] = outside[into]
    return parents


def _circle(parents: NDArray[np.int64]) -> list[int]:
    """Return the nodes of a circle, if there is one."""
    seen: dict[int, int] = {}
    for start in range(len(parents)):
        node, way = start, []
        while node >= 0 and node not in seen:
            seen[node] = start
            way.append(node)
            node = int(parents[node])
        if node >= 0 and seen[node] == start:
            return way[way.index(node) :]
    return []

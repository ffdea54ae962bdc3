"""Many trees from one root by multiplicative weights: a link's price grows with what it carries."""

from __future__ import annotations

import numpy as np

from laconic.collective.packing.capacities import Matrix
from laconic.collective.packing.cheapest import cheapest_tree

Parents = tuple[int, ...]
"""The parent of each rank in a tree; the root's is -1."""

_STEP, _MOST = 0.1, 20_000


def weigh_trees(capacity: Matrix, root: int, rate: int, enough: float) -> dict[Parents, float]:
    """Return trees with weights that together use no link above its capacity, with at least `enough` of the best rate.

    In each round the cheapest tree under the links' prices gets as much as its narrowest link has, and its links become
    dearer by the share of their capacity that this is (Garg and Könemann, 1998). Weights are scaled to what fits.
    """
    there = capacity > 0
    prices = np.where(there, 1.0, np.inf) / np.maximum(capacity, 1)
    load, weights, total = np.zeros(capacity.shape), dict[Parents, float](), 0.0
    for _ in range(_MOST):
        parents = cheapest_tree(prices, root)
        children = np.flatnonzero(parents >= 0)
        links = parents[children], children
        amount = float(capacity[links].min())
        key = tuple(parents.tolist())
        weights[key] = weights.get(key, 0.0) + amount
        load[links] += amount
        total += amount
        prices[links] *= 1 + _STEP * amount / capacity[links]
        overload = float((load[there] / capacity[there]).max())
        if total / overload >= enough * rate:
            break
    return {parents: weight / overload for parents, weight in weights.items()}

"""A minimum cut of a small weighted graph into parts of given sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def bipartition(weights: NDArray[np.float64], nodes: Sequence[int], first: int) -> tuple[list[int], list[int]]:
    """Return two parts of some nodes, of which the first has so many, with little weight between them: the heuristic of
    Fiduccia and Mattheyses. In a pass every node is moved once, to and fro, so that sizes differ by one at most while
    the best is sought; the best state of a pass begins the next, until none is better. Then single swaps are tried: a
    pass moves nodes one after the other, and may miss the pair whose exchange is best.

    - `weights`: of edges, a symmetric matrix.
    - `nodes`: the nodes to split.
    - `first`: the size of the first part.
    """
    inside = np.zeros(len(weights), dtype=bool)
    inside[list(nodes)[:first]] = True
    among = list(nodes)
    best = _cut(weights, among, inside)
    while 0 < first < len(among):
        found, state = best, inside.copy()
        trial, free = inside.copy(), set(among)
        while any(trial[node] for node in free) and any(not trial[node] for node in free):
            for leaving in (True, False):
                node = max(
                    (node for node in sorted(free) if trial[node] == leaving),
                    key=lambda node: (_gain(weights, among, trial, node), -node),
                )
                trial[node] = not leaving
                free.remove(node)
            if (value := _cut(weights, among, trial)) < found - 1e-12:
                found, state = value, trial.copy()
        if found >= best:
            found, state = _best_swap(weights, among, inside)
        if found >= best - 1e-12:
            break
        best, inside = found, state
    return [node for node in among if inside[node]], [node for node in among if not inside[node]]


def _best_swap(
    weights: NDArray[np.float64], among: list[int], inside: NDArray[np.bool_]
) -> tuple[float, NDArray[np.bool_]]:
    """Return the lightest cut that the exchange of two nodes leads to."""
    found = []
    for a in (node for node in among if inside[node]):
        for b in (node for node in among if not inside[node]):
            state = inside.copy()
            state[a], state[b] = False, True
            found.append((_cut(weights, among, state), a, b, state))
    value, _, _, state = min(found, key=lambda one: one[:3])
    return value, state


def _cut(weights: NDArray[np.float64], among: list[int], inside: NDArray[np.bool_]) -> float:
    a, b = ([node for node in among if inside[node] == side] for side in (True, False))
    return float(weights[np.ix_(a, b)].sum())


def _gain(weights: NDArray[np.float64], among: list[int], inside: NDArray[np.bool_], node: int) -> float:
    """Return by how much the cut becomes lighter when a node changes sides."""
    row, same = weights[node, among], inside[among] == inside[node]
    return float(row[~same].sum() - row[same].sum() + weights[node, node])

"""Few of many trees: an integer program over whole units of capacity, relaxed only where that is too slow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from laconic.collective.packing.capacities import Matrix
from laconic.collective.packing.multiplicative import Parents

_GRAINS = (1.0, 0.5, 0.25)
_LIMIT_SECONDS = 5.0


def choose_trees(capacity: Matrix, trees: Sequence[Parents], rate: int, enough: float) -> dict[Parents, float]:
    """Return some of the trees with weights, which are whole units if these reach `enough` of the best rate.

    Otherwise they are halves or quarters of units, and any numbers if even these do not.
    """
    rows, columns = np.nonzero(capacity)
    number = {ends: k for k, ends in enumerate(zip(rows.tolist(), columns.tolist(), strict=True))}
    uses = np.zeros((len(number), len(trees)))
    for column, parents in enumerate(trees):
        for child, parent in enumerate(parents):
            if parent >= 0:
                uses[number[parent, child], column] = 1
    room = capacity[rows, columns].astype(float)
    for grain in (*_GRAINS, 0.0):
        unit = grain or 1.0
        found = milp(
            -np.ones(len(trees)),
            integrality=np.full(len(trees), int(grain > 0)),
            bounds=Bounds(0, np.inf),
            constraints=LinearConstraint(uses, ub=room / unit),
            options={"time_limit": _LIMIT_SECONDS},
        )
        if found.x is None:
            continue
        weights = (np.rint(found.x) if grain else np.maximum(found.x, 0)) * unit
        if weights.sum() >= enough * rate or not grain:
            break
    return {parents: float(w) for parents, w in zip(trees, weights, strict=True) if w > 1e-9 * rate}

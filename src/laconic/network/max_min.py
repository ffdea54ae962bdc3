"""Max-min fair rates by progressive filling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fill(weights: NDArray[np.float64], room: NDArray[np.float64], rising: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the level at which each row stops: all rise equally until a link is full; those that load it stay, the
    others go on rising. What they use is taken from `room`.

    - `weights`: what each row loads each link with, at a level of 1.
    - `room`: what each link has left, which is changed.
    - `rising`: the rows that take part; the levels of the others are 0.
    """
    levels = np.zeros(len(weights))
    rising = rising.copy()
    while rising.any():
        load = weights[rising].sum(axis=0)
        used = load > 0
        shares = np.full(len(room), np.inf)
        shares[used] = np.maximum(room[used], 0) / load[used]
        share = shares.min()
        full = shares <= share * (1 + 1e-9)
        stopped = rising & (weights[:, full] > 0).any(axis=1)
        levels[stopped] = share
        room -= weights[stopped].sum(axis=0) * share
        rising &= ~stopped
    return levels

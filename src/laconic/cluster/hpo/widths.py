"""How wide each trial of a group is to be, so that all end together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.errors import ClusterError


def unscaled(heights: Sequence[float], gpus: float, packed: int, most: int) -> np.ndarray:
    """Return the GPUs of each trial by water filling, before they are scaled to what there is: as large a part of all
    as its work is, in whole GPUs, but no less than the smallest part of one and no more than it can use.

    - `heights`: the seconds that each trial would still take on one GPU.
    - `gpus`: how many there are.
    - `packed`: the most trials that share a GPU.
    - `most`: the most GPUs that a trial can use.
    """
    if gpus <= 0 or packed < 1 or most < 1:
        raise ClusterError("trials need at least a part of a GPU, one trial to a GPU, and one GPU to a trial")
    h = np.asarray(heights, dtype=float)
    if h.size and (h.min() < 0 or not np.isfinite(h).all()):
        raise ClusterError("the work that a trial has left is a number of seconds, not below 0")
    shares = gpus * h / h.sum() if h.sum() > 0 else np.zeros_like(h)
    return np.minimum(np.maximum(np.floor(shares + 1e-9), 1 / packed), most)


def widths(heights: Sequence[float], gpus: float, packed: int, most: int) -> np.ndarray:
    """Return the GPUs of each trial, which make up all that there are: below 1 it shares one with others, above 1 it
    trains on several.

    - `heights`: the seconds that each trial would still take on one GPU.
    - `gpus`: how many there are.
    - `packed`: the most trials that share a GPU.
    - `most`: the most GPUs that a trial can use.
    """
    found = unscaled(heights, gpus, packed, most)
    return found * (gpus / found.sum()) if found.size else found

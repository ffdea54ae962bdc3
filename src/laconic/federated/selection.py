"""The random draws by which clients are selected: the same wherever a run takes place."""

from __future__ import annotations

import numpy as np


def draw_of_round(seed: int, number: int) -> np.random.Generator:
    """Return the draws for the clients of a round, by its number."""
    return np.random.default_rng([seed, 0x5E1EC7, number])


def draw_of_start(seed: int, number: int) -> np.random.Generator:
    """Return the draws for the client that is started next without rounds, by how many were started before."""
    return np.random.default_rng([seed, 0xA57C, number])

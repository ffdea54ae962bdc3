"""`Flow`: the bytes that an operation sends, from which member to which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Flow:
    """The bytes an operation sends between members (by place in the group), in rounds that each pay the latency."""

    sources: NDArray[np.int64]
    destinations: NDArray[np.int64]
    nbytes: NDArray[np.float64]
    rounds: int

    @property
    def most_sent_bytes(self) -> float:
        """The bytes sent by the member that sends most."""
        return float(np.bincount(self.sources, self.nbytes).max()) if len(self.sources) else 0.0

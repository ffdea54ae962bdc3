"""The ways of transfers through a network, on which their bytes load links and their latencies add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Routes:
    """The links of some transfers, a row each (-1 where there are fewer than the most), and the latency of each."""

    links: NDArray[np.int64]
    latency_seconds: Vector

    def load_bytes(self, nbytes: ArrayLike, links: int) -> Vector:
        """Return the bytes on each of so many links where each transfer has so many."""
        used = self.links >= 0
        amounts = np.broadcast_to(np.asarray(nbytes, dtype=float)[:, None], self.links.shape)
        return np.bincount(self.links[used], amounts[used], minlength=links).astype(float)


class Links(Protocol):
    """A network between ranks: directed links with capacities, and the ways that transfers take over them."""

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def capacities(self) -> Vector:
        """The bytes per second of every directed link."""
        ...

    def routes(self, sources: ArrayLike, destinations: ArrayLike) -> Routes:
        """Return the ways between pairs of ranks."""
        ...

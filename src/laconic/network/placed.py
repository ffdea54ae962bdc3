"""A network whose ranks sit at other places than their numbers say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from laconic.network.routes import Links, Routes, Vector


@dataclass(frozen=True)
class Placed:
    """A network on which rank k is where rank `order[k]` of another is."""

    links: Links
    order: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.links.size

    @property
    def capacities(self) -> Vector:
        """The bytes per second of every directed link."""
        return self.links.capacities

    def routes(self, sources: ArrayLike, destinations: ArrayLike) -> Routes:
        """Return the ways between the places of ranks."""
        order = np.asarray(self.order)
        return self.links.routes(order[np.asarray(sources)], order[np.asarray(destinations)])

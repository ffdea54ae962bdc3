"""The topology's contract: who is whose neighbour, as mixing weights for any number of workers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from laconic.registry import Technique
from laconic.topology.mixing import Mixing


class Topology(Technique):
    """In which shape workers talk: a logical graph, which may change from step to step and may be directed."""

    axis: ClassVar[str] = "topology"
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"architecture": ("gossip",)}

    def mixing(self, size: int, seed: int = 0) -> Mixing:
        """Its weights among so many workers; the same on each of them for the same seed."""
        return _laid_out(self, size, seed)

    @abstractmethod
    def lay_out(self, size: int, seed: int) -> Mixing:
        """Make the weights: what a word defines."""


@lru_cache(maxsize=256)
def _laid_out(topology: Topology, size: int, seed: int) -> Mixing:
    """Once per process, however many virtual workers ask."""
    return topology.lay_out(size, seed)

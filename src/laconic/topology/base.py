"""The contract of a topology: which workers are neighbours, as mixing weights for any number of workers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from laconic.errors import LaconicError
from laconic.registry import Technique
from laconic.topology.mixing import Mixing


class Topology(Technique):
    """A logical graph over which workers communicate; it may be directed and may change from step to step."""

    axis: ClassVar[str] = "topology"
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"architecture": ("gossip",)}

    def mixing(self, size: int, seed: int = 0) -> Mixing:
        """Return the mixing weights among `size` workers, the same on each of them for the same seed."""
        if size < 1:
            raise LaconicError(f"{self.name} joins at least one worker, not {size}")
        return _cached_mixing(self, size, seed)

    @abstractmethod
    def lay_out(self, size: int, seed: int) -> Mixing:
        """Make the mixing weights; this is what each topology defines."""


@lru_cache(maxsize=256)
def _cached_mixing(topology: Topology, size: int, seed: int) -> Mixing:
    """Make the weights once per process, for all its virtual workers."""
    return topology.lay_out(size, seed)

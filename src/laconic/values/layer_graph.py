"""`LayerGraph`: the layers of a model with their times and bytes, and whose output each of them reads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from laconic.errors import LaconicError


@dataclass(frozen=True)
class Layer:
    """What one layer takes for a batch: seconds of its two passes, bytes of its output and of its parameters."""

    name: str
    forward_seconds: float
    backward_seconds: float
    output_bytes: float
    parameter_bytes: float

    def __post_init__(self) -> None:
        if min(self.forward_seconds, self.backward_seconds, self.output_bytes, self.parameter_bytes) < 0:
            raise LaconicError(f"the layer {self.name} has a time or a size below 0: neither can be")

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True)
class LayerGraph:
    """Layers in an order in which they can be computed; an edge (i, j) says that layer j reads the output of layer i.

    Cut into stages, every stage is a run of neighbours in this order.
    """

    layers: tuple[Layer, ...]
    edges: frozenset[tuple[int, int]]

    def __post_init__(self) -> None:
        if not self.layers:
            raise LaconicError("a model needs at least one layer")
        if wrong := [(i, j) for i, j in self.edges if not 0 <= i < j < len(self.layers)]:
            raise LaconicError(
                f"the edge from layer {wrong[0][0]} to layer {wrong[0][1]} does not lead forward among "
                f"{len(self.layers)} layers: list the layers in an order in which they can be computed"
            )

    @classmethod
    def chain(cls, layers: tuple[Layer, ...]) -> LayerGraph:
        """Return the graph of layers that each read the one before."""
        return cls(layers, frozenset(pairwise(range(len(layers)))))

    @property
    def cut_bytes(self) -> list[float]:
        """The bytes that cross a cut before each layer, every output once, and 0 at both ends."""
        last_reader = list(range(len(self.layers)))
        for i, j in self.edges:
            last_reader[i] = max(last_reader[i], j)
        crossing = [0.0] * (len(self.layers) + 1)
        for i, (layer, last) in enumerate(zip(self.layers, last_reader, strict=True)):
            for cut in range(i + 1, last + 1):
                crossing[cut] += layer.output_bytes
        return crossing

"""The layers of models: each lists its tensors, with their operations and memory traffic for one sample."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

Kind = Literal["convolution", "matrix", "pointwise"]


class Tensor(NamedTuple):
    """One parameter, and its part of the layer's work for one sample in the forward pass; backward takes twice as much.

    `operations` are multiplications; `moved` are values that the layer reads and writes beside the parameter, `after`
    those of the elementwise functions that follow it; `kept` are values that stay in memory until backward needs them.
    """

    name: str
    shape: tuple[int, ...]
    operations: float
    moved: float = 0.0
    after: float = 0.0
    kept: float = 0.0
    kind: Kind = "pointwise"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


Model = list[Tensor]


def normed(name: str, width: int, places: int, after: int = 0, bias: bool = True) -> Model:
    """Return a normalization: scale and shift of each channel, at so many positions; it reads twice and writes once."""
    size = width * places
    weight = Tensor(f"{name}.weight", (width,), size, 3 * size, after * size, size)
    return [weight, Tensor(f"{name}.bias", (width,), size)] if bias else [weight]


def dense(name: str, inputs: int, outputs: int, places: int = 1, after: int = 0, bias: bool = True) -> Model:
    """Return a matrix and its bias, applied at so many positions, with `after` elementwise passes over the result."""
    size = outputs * places
    kept = 2 * size if after else size
    operations, moved = inputs * outputs * places, (inputs + outputs) * places
    weight = Tensor(f"{name}.weight", (outputs, inputs), operations, moved, after * size, kept, "matrix")
    return [weight, Tensor(f"{name}.bias", (outputs,), size)] if bias else [weight]


def convolution(name: str, norm: str, inputs: int, outputs: int, kernel: int, side: int) -> Model:
    """Return a convolution without bias, its normalization and a ReLU, with outputs of `side` by `side` positions."""
    shape, places = (outputs, inputs, kernel, kernel), side * side
    operations, moved, kept = math.prod(shape) * places, (inputs + outputs) * places, outputs * places
    weight = Tensor(f"{name}.weight", shape, operations, moved, 0.0, kept, "convolution")
    return [weight, *normed(norm, outputs, places, after=2)]

"""A model's tensors as one flat vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.values.tensor_spec import TensorSpec

Vectors = Mapping[str, Tensor]
"""Flat float32 vectors by their names: a model's parameters, a client's change, a control variate."""


def moved(vectors: Vectors, device: torch.device | str) -> dict[str, Tensor]:
    """Return these vectors on a device."""
    return {name: vector.to(device) for name, vector in vectors.items()}


def lengths(vectors: Vectors) -> dict[str, int]:
    """Return how long each vector is."""
    return {name: vector.numel() for name, vector in vectors.items()}


@dataclass(frozen=True)
class Layout:
    """The tensors of a model in one flat float32 vector, one behind another."""

    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Return the layout of a model's parameters. A model with running statistics is refused: nobody averages
        them."""
        if running := [name for name, buffer in model.named_buffers() if buffer.is_floating_point()]:
            raise LaconicError(
                f"the model keeps statistics beside its parameters ({running[0]}), which clients would not share; take "
                "group normalisation in place of batch normalisation"
            )
        return cls(tuple(TensorSpec(n, tuple(p.shape), torch.float32) for n, p in model.named_parameters()))

    @property
    def numel(self) -> int:
        return sum(spec.numel for spec in self.specs)

    @property
    def nbytes(self) -> int:
        return 4 * self.numel

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return the tensors of a vector, as views of it."""
        pieces = vector.split([spec.numel for spec in self.specs])
        return [piece.view(spec.shape) for piece, spec in zip(pieces, self.specs, strict=True)]

    def join(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the vector of these tensors."""
        return torch.cat([x.detach().reshape(-1).float() for x in tensors])

"""Where the values of whole tensors lie in the flat tensor that sharded training scatters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ShardLayout:
    """A row for each owner, which holds its chunk of every tensor, one after another.

    A tensor is cut along one dimension; chunks along the first are padded to equal lengths, others divide evenly.
    """

    shapes: tuple[tuple[int, ...], ...]
    dims: tuple[int, ...]
    size: int

    def _lengths(self) -> list[int]:
        """Return the number of values of each tensor's chunk."""
        found = []
        for shape, dim in zip(self.shapes, self.dims, strict=True):
            chunk = -(-shape[dim] // self.size) if shape else 1
            found.append(chunk * (torch.Size(shape).numel() // max(shape[dim], 1) if shape else 1))
        return found

    @property
    def numel(self) -> int:
        """The number of values in the flat tensor, padding included."""
        return self.size * sum(self._lengths())

    def whole(self, flat: Tensor) -> list[Tensor]:
        """Return the whole tensors that a flat tensor holds."""
        parts = flat.view(self.size, -1).split(self._lengths(), dim=1)
        return [self._joined(p, s, d) for p, s, d in zip(parts, self.shapes, self.dims, strict=True)]

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the flat tensor that holds these whole ones, with zeros as padding."""
        rows = [self._cut(x, d, n) for x, d, n in zip(tensors, self.dims, self._lengths(), strict=True)]
        return torch.cat(rows, dim=1).reshape(-1)

    def _joined(self, rows: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
        if dim == 0:
            return rows.reshape(-1)[: torch.Size(shape).numel()].view(shape)
        chunk = (*shape[:dim], shape[dim] // self.size, *shape[dim + 1 :])
        return torch.cat([row.view(chunk) for row in rows], dim=dim)

    def _cut(self, x: Tensor, dim: int, length: int) -> Tensor:
        values = x.reshape(-1) if dim == 0 else torch.cat([c.reshape(-1) for c in x.chunk(self.size, dim)])
        return torch.nn.functional.pad(values, (0, self.size * length - values.numel())).view(self.size, length)

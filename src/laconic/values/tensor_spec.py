"""`TensorSpec`: what may be known about a tensor before any gradient exists."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorSpec:
    """What may be known about a tensor before any gradient exists."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: str = "matrix"
    parts: tuple[int, ...] = ()
    """Lengths of the tensors that it joins, where it does."""

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

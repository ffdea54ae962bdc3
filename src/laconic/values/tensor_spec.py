"""`TensorSpec`: what is known about a tensor before any gradient exists."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TensorSpec:
    """The name, shape, type and role of a tensor: what is known about it before any gradient exists."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: str = "matrix"
    parts: tuple[int, ...] = ()
    """The lengths of the tensors that this one joins; empty where it is a single tensor."""

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

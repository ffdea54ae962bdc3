"""Tensors of many kinds, as gradients have them and as they hardly ever do, for tests of techniques."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("normal", "heavy", "sparse", "constant", "zero", "lone")


def drawn(kind: str, shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor of some kind: normal values, some very large, few or one that are not zero, all equal."""
    draw = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(shape, generator=draw)
    if kind == "heavy":
        x = x**5
    elif kind == "sparse":
        x = x * (torch.rand(shape, generator=draw) < 0.05)
    elif kind in ("constant", "zero"):
        x = torch.full(shape, 0.37 if kind == "constant" else 0.0)
    elif kind == "lone":
        first, x = x.reshape(-1)[:1], torch.zeros(shape)
        x.view(-1)[:1] = first
    return x.to(dtype)

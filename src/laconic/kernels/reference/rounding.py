"""Rounding to bfloat16 at random, so that the mean is right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.kernels.draws import integers

MOST = torch.finfo(torch.bfloat16).max


def round_randomly(xs: Sequence[Tensor], keys: Sequence[int]) -> Tensor:
    """Return flat float32 tensors, finite ones, one behind another as bfloat16: each value is one of its two
    neighbours, the nearer the likelier, by the draw of its place under its tensor's key."""
    parts = []
    for x, key in zip(xs, keys, strict=True):
        word = x.clamp(-MOST, MOST).view(torch.int32)
        draws = (integers(key, 0, x.numel(), x.device) >> 8).to(torch.int32)  # of 16 bits
        parts.append(((word + draws) & -(1 << 16)).view(torch.float32).to(torch.bfloat16))
    return torch.cat(parts)

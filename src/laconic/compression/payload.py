"""Payloads: typed parts in one run of bytes, without anything between them.

Both sides know a tensor's shape and the words of the sentence, so that lengths and types need not be sent; the layout
is that of laconic's own version, which workers and servers compare before the first payload.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.errors import ContractError


def pack(*parts: Tensor) -> Tensor:
    """Join these tensors, one after another, as bytes."""
    return torch.cat([part.contiguous().reshape(-1).view(torch.uint8) for part in parts])


def unpack(payload: Tensor, *parts: tuple[torch.dtype, int]) -> list[Tensor]:
    """Return the parts of a payload, given as types and numbers of elements; -1 for the last one means the rest."""
    lengths = [dtype.itemsize * count for dtype, count in parts]
    if lengths and parts[-1][1] < 0:
        lengths[-1] = payload.numel() - sum(lengths[:-1])
    if sum(lengths) != payload.numel() or min(lengths, default=0) < 0:
        raise ContractError(f"a payload of {payload.numel()} bytes where {sum(lengths)} were expected")
    return [_typed(part, dtype) for part, (dtype, _) in zip(payload.split(lengths), parts, strict=True)]


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return these bytes as this type, copied where they do not begin at a multiple of its size."""
    aligned = part.storage_offset() % dtype.itemsize == 0
    return (part if aligned else part.clone()).view(dtype)

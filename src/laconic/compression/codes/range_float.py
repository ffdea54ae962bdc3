"""Floats of a few bits between two magnitudes: the bit patterns of float32, truncated and counted from the smallest.

A float's bits, read as a whole number, grow with its magnitude; so the highest bits of the pattern minus those of the
smallest magnitude number all values of a range in order, with `mantissa` bits of precision each. Zero is 0, positive
values follow, then negative ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.compression.codes import bits

_MANTISSA = 23
HEADER = 12  # bytes: the smallest and the largest magnitude, and the mantissa's bits


def encode(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the range (three floats) and the packed codes of `width` bits.

    The mantissa is as long as the range allows; where even none is too long, magnitudes too small for the range become
    zero. Values that are not finite make the range's end not finite, and the codes are then of no use.
    """
    size = values.abs()
    most = size.max()
    positive = size[size > 0]
    least = positive.min() if positive.numel() else most
    codes_each = 2 ** (width - 1) - 1
    words = torch.stack([least, most]).view(torch.int32).long()
    mantissa = next((m for m in range(_MANTISSA, -1, -1) if _span(words, m) <= codes_each), 0)
    shift = _MANTISSA - mantissa
    base = torch.maximum(words[0] >> shift, (words[1] >> shift) - codes_each + 1)
    codes = ((size.view(torch.int32).long() >> shift) - base + 1).clamp(min=0) * (size > 0)
    codes = torch.where((values < 0) & (codes > 0), codes + codes_each, codes)
    header = torch.stack(
        [(base << shift).to(torch.int32).view(torch.float32), most, torch.tensor(float(mantissa), device=values.device)]
    )
    return header, bits.pack(codes, width)


def _span(words: Tensor, mantissa: int) -> int:
    shift = _MANTISSA - mantissa
    return int((words[1] >> shift) - (words[0] >> shift)) + 1


def decode(header: Tensor, packed: Tensor, width: int, count: int) -> Tensor:
    """Return the `count` values that these codes of a range stand for."""
    least, most, mantissa = header
    if not bool(most.isfinite()):
        return torch.full((count,), torch.nan, device=packed.device)
    shift, codes_each = _MANTISSA - int(mantissa), 2 ** (width - 1) - 1
    codes = bits.unpack(packed, width, count).long()
    negative = codes > codes_each
    places = torch.where(negative, codes - codes_each, codes)
    words = ((int(least.view(1).view(torch.int32)) >> shift) + places - 1) << shift
    size = torch.where(places > 0, words, 0).to(torch.int32).view(torch.float32)
    return torch.where(negative, -size, size)

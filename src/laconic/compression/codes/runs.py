"""Places as gaps of 16 bits beside values of 32 bits: six bytes each (Lin et al., DGC, ICLR 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

EACH = 6
_LONGEST = 0xFFFF


def gaps(places: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of zeros between consecutive places, as 16-bit patterns, and the values.

    Where a gap is longer than 16 bits can hold, entries of value zero are inserted at the longest distance that fits.
    """
    between = torch.diff(places, prepend=places.new_full((1,), -1)) - 1
    fillers = between // (_LONGEST + 1)
    ends = torch.cumsum(fillers + 1, 0) - 1
    count = int(ends[-1]) + 1 if len(places) else 0
    gap, value = places.new_full((count,), _LONGEST), values.new_zeros(count)
    gap[ends], value[ends] = between % (_LONGEST + 1), values
    return gap.to(torch.uint16), value


def read(payload: Tensor) -> tuple[Tensor, Tensor]:
    """Return the encoded places and values, including the inserted entries of value zero."""
    count = payload.numel() // EACH
    gap = payload[: 2 * count].clone().view(torch.uint16).long()
    return torch.cumsum(gap + 1, 0) - 1, payload[2 * count :].clone().view(torch.float32)

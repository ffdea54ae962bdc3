"""Ternary digits of two bits each, which can be added as whole numbers (Wen et al., TernGrad, NIPS 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 85
"""The number of rows of digits up to 3 whose sums fit into a byte."""


def pack_ternaries(digits: Tensor, room: int) -> Tensor:
    """Pack digits 0, 1, 2, four to a byte, the first in its lowest place, padded with zeros to `room`, a multiple of
    four."""
    rows = torch.nn.functional.pad(digits, (0, room - digits.numel())).view(-1, 4)
    return rows[:, 0] | (rows[:, 1] << 2) | (rows[:, 2] << 4) | (rows[:, 3] << 6)


def ternaries_of(packed: Tensor, scale: Tensor, count: int) -> Tensor:
    """Return the values of the first `count` digits: -scale, 0 or scale."""
    return (_digits(packed, count).float() - 1) * scale


def sum_of_digits(rows: Tensor, count: int) -> Tensor:
    """Return the sums over all rows of the first `count` digits, as uint8 where they fit and as int32 where they do
    not."""
    total = torch.zeros(count, dtype=torch.uint8 if len(rows) <= MOST else torch.int32, device=rows.device)
    for row in rows:
        total += _digits(row, count)
    return total


def _digits(packed: Tensor, count: int) -> Tensor:
    places = torch.arange(0, 8, 2, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> places) & 3).view(-1)[:count]

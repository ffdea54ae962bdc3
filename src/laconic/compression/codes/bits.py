"""Numbers of b bits each, packed without gaps: number i takes bits b·i to b·(i + 1), the lowest first."""

from __future__ import annotations

import torch
from torch import Tensor


def length(count: int, bits: int) -> int:
    """In bytes."""
    return -(-count * bits // 8)


def width(largest: int) -> int:
    """Bits for numbers up to this one."""
    return max(1, int(largest).bit_length())


def pack(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2 to the `bits`."""
    codes = codes.reshape(-1)
    if bits == 8:
        return codes.to(torch.uint8)
    if 8 % bits == 0:
        each = 8 // bits
        rows = _padded(codes.to(torch.uint8), each).view(-1, each)
        packed = rows[:, 0].clone()
        for k in range(1, each):
            packed |= rows[:, k] << (bits * k)
        return packed
    spread = (codes.to(torch.int64)[:, None] >> torch.arange(bits, device=codes.device)) & 1
    return pack(spread.view(-1).to(torch.uint8), 1)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first so many numbers, as uint8 where they fit and as int64 where they do not."""
    if bits == 8:
        return packed[:count]
    if 8 % bits == 0:
        places = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
        return ((packed[:, None] >> places) & ((1 << bits) - 1)).view(-1)[:count]
    rows = unpack(packed, 1, count * bits).view(count, bits).to(torch.int64)
    codes = (rows << torch.arange(bits, device=packed.device)).sum(dim=1)
    return codes.to(torch.uint8) if bits < 8 else codes


def _padded(codes: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(codes, (0, -codes.numel() % multiple))

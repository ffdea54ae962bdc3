"""Numbers of b bits each, packed without gaps: number i takes bits b·i to b·(i + 1), the lowest first."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic import kernels


def length(count: int, bits: int) -> int:
    """Return how many bytes `count` numbers of so many bits take."""
    return -(-count * bits // 8)


def part(count: int, size: int) -> int:
    """Return how many of `count` numbers one of `size` owners has, such that each owner's take whole bytes at any
    width."""
    return 8 * -(-count // (8 * size))


def width(largest: int) -> int:
    """Return the number of bits that numbers up to `largest` need."""
    return max(1, int(largest).bit_length())


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack whole numbers below 2 to the `bits` into bytes."""
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
    return kernels.pack_numbers(codes.long(), bits)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` packed numbers, as uint8 where they fit and as int64 where they do not."""
    if bits == 8:
        return packed[:count]
    if 8 % bits == 0:
        places = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
        return ((packed[:, None] >> places) & ((1 << bits) - 1)).view(-1)[:count]
    found = kernels.unpack_numbers(packed, bits, count)
    return found.to(torch.uint8) if bits < 8 else found


def _padded(codes: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(codes, (0, -codes.numel() % multiple))

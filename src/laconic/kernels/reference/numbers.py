"""Whole numbers of any width, packed without gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.reference.buckets import in_buckets


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    """Pack whole numbers of so many bits (at most 32) into bytes without gaps, the lowest bit first."""
    rows = in_buckets(codes, 8)
    packed = torch.zeros(len(rows), bits, dtype=torch.int64, device=codes.device)
    for j in range(8):
        byte, shift = divmod(bits * j, 8)
        span = (shift + bits + 7) // 8
        number = rows[:, j : j + 1] << shift
        packed[:, byte : byte + span] |= number >> torch.arange(0, 8 * span, 8, device=codes.device)
    return (packed & 0xFF).to(torch.uint8).view(-1)[: -(-codes.numel() * bits // 8)]


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` packed numbers, as int64."""
    first = torch.arange(0, count * bits, bits, device=packed.device)
    byte, span = first >> 3, (bits + 14) // 8  # a number spans at most so many bytes
    rows = torch.nn.functional.pad(packed, (0, span)).long()
    codes = rows[byte]
    for k in range(1, span):
        codes |= rows[byte + k] << (8 * k)
    return (codes >> (first & 7)) & ((1 << bits) - 1)

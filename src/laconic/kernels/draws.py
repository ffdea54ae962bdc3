"""Random numbers by place: the i-th draw under a key is a function of (key, i), whoever computes it and in what order.

So every rank can repeat another's draws, a part of a tensor can be drawn without the rest, and CPU and GPU agree to the
bit: integers of 32 bits, two multiplications, no floating point before the last line. The mixing function is a 32-bit
finaliser of the murmur kind with half of the key added between its two halves; it is for rounding and choosing, not for
secrets.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
FIRST, SECOND = 0x21F0AAAD, 0xD35A2D97
SHIFTS = (16, 15, 15)
STIRRING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
BITS = 24
"""The number of random bits of a draw: as many as a float32 holds exactly."""


def key_of(place: str) -> int:
    """Return a key of 64 bits for the thing that a text names, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest())


def halves(key: int) -> tuple[int, int]:
    """Return a 64-bit key as the two numbers that kernels take, mixed so that similar keys give unrelated ones."""
    for shift, factor in STIRRING:
        key = (key ^ (key >> shift)) * factor & (1 << 64) - 1
    key ^= key >> 31
    return key & MASK, key >> 32


def integers(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return draws `start` to `start + count` under a key, each of 24 bits, as int64."""
    return at(key, torch.arange(start, start + count, dtype=torch.int64, device=device))


def at(key: int, places: Tensor) -> Tensor:
    """Return the draws with these numbers."""
    low, high = halves(key)
    h = (places & MASK) ^ low
    h = ((h ^ (h >> SHIFTS[0])) * FIRST + high) & MASK
    h = ((h ^ (h >> SHIFTS[1])) * SECOND) & MASK
    return (h ^ (h >> SHIFTS[2])) >> (32 - BITS)


def uniform(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return draws `start` to `start + count` under a key in [0, 1), as float32."""
    return integers(key, start, count, device).to(torch.float32) * 2.0**-BITS

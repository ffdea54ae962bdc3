"""Gaps between places in a Golomb–Rice code: a quotient in ones and a zero, a remainder in b bits (Golomb, 1966).

All quotients come first, then all remainders, so that both can be decoded at once. A place takes some log2(n/k) + 1.5
bits where k places among n are random, less than log2 n; b is the best for gaps that are geometric then (Sattler et
al., 2020).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from laconic.compression.codes import bits

_GOLDEN = math.log((math.sqrt(5) + 1) / 2)


def width(k: int, numel: int) -> int:
    """Return b, computed from what both sides know: k places among `numel`."""
    p = max(1, k) / max(1, numel)
    return max(0, 1 + math.floor(math.log2(_GOLDEN / -math.log1p(-p)))) if p < 1 else 0


def most(k: int, numel: int) -> int:
    """Return the largest number of bytes that k places can take."""
    b = width(k, numel)
    return bits.length(k + (numel >> b), 1) + bits.length(k, b) if b else bits.length(k + numel, 1)


def write(places: Tensor, numel: int) -> Tensor:
    """Encode places, which are in ascending order."""
    b = width(len(places), numel)
    gaps = torch.diff(places, prepend=places.new_full((1,), -1)) - 1
    ends = torch.cumsum((gaps >> b) + 1, 0)
    quotients = torch.ones(int(ends[-1]) if len(places) else 0, dtype=torch.uint8, device=places.device)
    quotients[ends - 1] = 0
    rest = [bits.pack(gaps & ((1 << b) - 1), b)] if b else []
    return torch.cat([bits.pack(quotients, 1), *rest])


def read(written: Tensor, k: int, numel: int) -> tuple[Tensor, int]:
    """Return the first k places, and how many bytes they took."""
    b = width(k, numel)
    zeros = np.flatnonzero(bits.unpack(written, 1, 8 * len(written)).cpu().numpy() == 0)[:k]
    head = bits.length(int(zeros[-1]) + 1, 1) if k else 0
    quotients = torch.from_numpy(np.diff(zeros, prepend=-1) - 1).to(written.device)
    tail = bits.length(k, b) if b else 0
    rest = bits.unpack(written[head : head + tail], b, k).long() if b else torch.zeros_like(quotients)
    return torch.cumsum((quotients << b) + rest + 1, 0) - 1, head + tail

"""Bloom filters: a set of places in m bits, which h hashes of each set; others may pass by chance (Bloom, 1970)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laconic.compression.codes import bits
from laconic.kernels import draws


def size(count: int, rate: float) -> tuple[int, int]:
    """Return m and h for a set of so many places, which others pass at this rate: -r·ln f/(ln 2)² and m/r·ln 2."""
    m = max(1, math.ceil(-count * math.log(rate) / math.log(2) ** 2))
    return m, max(1, round(m / max(1, count) * math.log(2)))


def hashes(places: Tensor, m: int, h: int) -> Tensor:
    """Return which bits each place sets, a row for each hash."""
    return torch.stack([_hash(places, i, m) for i in range(h)])


def _hash(places: Tensor, i: int, m: int) -> Tensor:
    """Return the i-th hash of each place: two draws of 24 bits, modulo m."""
    return (draws.at(2 * i, places) << draws.BITS | draws.at(2 * i + 1, places)) % m


def write(places: Tensor, m: int, h: int) -> Tensor:
    """Return the filter of these places as bytes."""
    marked = torch.zeros(m, dtype=torch.uint8, device=places.device)
    marked[hashes(places, m, h).view(-1)] = 1
    return bits.pack(marked, 1)


def passing(written: Tensor, m: int, h: int, numel: int) -> Tensor:
    """Return all places below `numel` that are in a filter, in ascending order: those of the set, and some others."""
    marked = bits.unpack(written, 1, m).bool()
    found = torch.arange(numel, device=written.device)
    for i in range(h):
        found = found[marked[_hash(found, i, m)]]
    return found


def conflicts(found: Tensor, m: int, h: int) -> Tensor:
    """Return for each passing place how many of them share the bit that the fewest share: where it is one, the place is
    in the set for certain, since somebody has set that bit."""
    where = hashes(found, m, h)
    shared = torch.bincount(where.view(-1), minlength=m)
    return shared[where].amin(0)

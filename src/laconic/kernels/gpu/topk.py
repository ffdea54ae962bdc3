"""The k largest magnitudes, exactly, in one pass over the data.

A small sample gives a pivot that somewhat more than k should pass. What passes it, brought together in order, lies in
the cache: there the k-th largest is found, and those above it and the first of those that equal it are written out. The
host waits once, for how many passed. Too few or too many (ties: a constant tensor) are left to the reference.
4 bytes an element, and some 100 for each that is selected.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.limits import limit_of, roughly, size
from laconic.kernels.gpu.selection import compacted, suit

_LOOKED, _BITS = 8192, 17  # sampled values that give the pivot, and bits of it
_SURE = 5  # standard deviations by which the pivot's rank in the sample is above the expected one
_TILE = 4096
BLOCK = tl.constexpr(1024)
_LEAST = 1 << 15  # elements below which torch does as well
_KEY = 0x5EED  # key of the sample; the result does not depend on it


@triton.jit
def _compared(values, length, room, limit, TILE: tl.constexpr):
    """Tell which of a tile's candidates are above the limit, and which equal it."""
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = i < tl.minimum(tl.load(length), room)
    bits, least = size(tl.load(values + i, mask=inside, other=0.0)), size(tl.load(limit))
    return i, inside & (bits > least), inside & (bits == least)


@triton.jit(do_not_specialize=["room"])
def _tally(values, length, room, limit, tallies, TILE: tl.constexpr):
    """Count these candidates: two numbers in one, so that one sum adds up both."""
    _, above, equal = _compared(values, length, room, limit, TILE)
    both = (tl.sum(above.to(tl.int32), 0).to(tl.int64) << 32) | tl.sum(equal.to(tl.int32), 0).to(tl.int64)
    tl.store(tallies + tl.program_id(0), both)


@triton.jit(do_not_specialize=["room", "k"])
def _choose(places, values, length, room, limit, k, tallies, chosen, TILE: tl.constexpr):
    """Write the places of those above the limit, and of the first that equal it, as many as are missing to k."""
    tile = tl.program_id(0)
    if tile * TILE < tl.minimum(tl.load(length), room):
        before, all_of_them = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64)
        for first in range(0, tl.num_programs(0), BLOCK):
            j = first + tl.arange(0, BLOCK)
            both = tl.load(tallies + j, mask=j < tl.num_programs(0), other=0)
            all_of_them += both
            before += tl.where(j < tile, both, 0)
        end = tl.sum(before, 0)
        missing = (k - (tl.sum(all_of_them, 0) >> 32)).to(tl.int32)
        i, above, equal = _compared(values, length, room, limit, TILE)
        both = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), 0)  # inclusive
        above_before = (end >> 32).to(tl.int32) + (both & 0xFFFF) - above.to(tl.int32)
        equal_before = (end & 0xFFFFFFFF).to(tl.int32) + (both >> 16) - equal.to(tl.int32)
        taken = above | (equal & (equal_before < missing))
        into = above_before + tl.minimum(equal_before, missing)
        place = tl.load(places + i, mask=taken, other=0)
        tl.store(chosen + into, place, mask=taken & (into >= 0) & (into < k))


def largest(x: Tensor, k: int) -> Tensor:
    n, looked = x.numel(), min(_LOOKED, x.numel())
    share = k / max(n, 1) * looked
    rank = math.ceil(share + _SURE * math.sqrt(share)) + _SURE  # rank of the pivot in the sample
    room = math.ceil(2 * n / max(looked, 1) * (rank + _SURE * math.sqrt(rank)))  # twice the expected number, for ties
    if not suit(x) or n < _LEAST or 2 * rank > looked or room >= 1 << 31:
        return reference.largest(x, k)
    found = compacted([x], None, roughly(x, None, looked, rank, _KEY, _BITS), room, True)
    places, values, ends = found.moved(room)
    limit = limit_of(values, ends, k)
    tiles = -(-room // (2 * _TILE)) * 2
    both = torch.empty(tiles + k, dtype=torch.int64, device=x.device)
    tallies, chosen = both[:tiles], both[tiles:]
    _tally[(tiles,)](values, ends, room, limit, tallies, _TILE, num_warps=4)
    _choose[(tiles,)](places, values, ends, room, limit, k, tallies, chosen, _TILE, num_warps=4)
    length, asked = ends.tolist()
    return chosen if k <= length <= room and asked <= room else reference.largest(x, k)

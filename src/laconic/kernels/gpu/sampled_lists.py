"""Limits that are estimated from samples, of a list of tensors in one launch, and the rare tensor of which more passes
than may be sent, with NaN among it.

A program finds the k-th largest magnitude of one tensor's sample by counting digits of eight bits, in four rounds over
the sample, which lies in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels.gpu.compaction import GROUP, STATE
from laconic.kernels.gpu.limits import INFINITE
from laconic.kernels.gpu.radix import DIGIT, next_digit_of, tile_sizes
from laconic.kernels.gpu.triton_helpers import draw, key_of, pointed

_LEAST = tl.constexpr(0x00800000)  # the bits of the least normal number


@triton.jit
def _next_digit(values, n, found, k, SHIFT: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr):
    """Return the digits found so far and the next one, of so many bits, and the rank of the k-th largest among values
    that share them."""
    count = tl.zeros([DIGIT], tl.int32)
    for first in range(0, n, TILE):
        bits = tile_sizes(values + first, n - first, TILE)
        shared = (bits >> (SHIFT + BITS)) == found
        others = TILE - tl.sum(shared.to(tl.int32), 0)
        count += tl.histogram(tl.where(shared, (bits >> SHIFT) & ((1 << BITS) - 1), 0), DIGIT)
        count -= tl.where(tl.arange(0, DIGIT) == 0, others, 0)
    digit, rank = next_digit_of(count, k, DIGIT)
    return (found << BITS) | digit, rank


@triton.jit
def _k_th(values, n, k, TILE: tl.constexpr):
    """Return the bits of the k-th largest magnitude, and its rank among those that equal it, in one program."""
    found, rank = _next_digit(values, n, tl.full([], 0, tl.int32), k, 23, 8, TILE)
    found, rank = _next_digit(values, n, found, rank, 15, 8, TILE)
    found, rank = _next_digit(values, n, found, rank, 7, 8, TILE)
    return _next_digit(values, n, found, rank, 0, 7, TILE)


@triton.jit(do_not_specialize=["keys"])
def sample_limits(x, error, lengths, looked, ranks, begins, keys, scratch, limits, TILE: tl.constexpr,
                  FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Find the limit of one tensor: the k-th largest of `looked` values of x + error (FED), or x."""
    number = tl.program_id(0)
    x = pointed(x, number, LISTED, ALIGNED)
    if FED:
        error = pointed(error, number, LISTED, ALIGNED)
    n, count = tl.load(lengths + number), tl.load(looked + number)
    drawn = count < n
    count = tl.minimum(n, count).to(tl.int32)
    low, high = key_of(keys, number)
    scratch += tl.load(begins + number)
    for first in range(0, count, TILE):
        i = first + tl.arange(0, TILE)
        inside = i < count
        at = tl.where(drawn, (draw(i, low, high).to(tl.int64) * n) >> 24, i.to(tl.int64))
        v = tl.load(x + at, mask=inside, other=0.0)
        if FED:
            v += tl.load(error + at, mask=inside, other=0.0)
        tl.store(scratch + i, v, mask=inside)
    tl.debug_barrier()
    limit, _ = _k_th(scratch, count, tl.load(ranks + number), TILE)
    tl.store(limits + number, tl.maximum(limit, _LEAST))


@triton.jit
def settle(v, lengths, firsts, limits, most, totals, state, tallies, groups, TILE: tl.constexpr,
           LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Decide what is sent of one tensor: what passes, at most the first so many; where there is NaN and more passes,
    the largest, which are tallied anew."""
    number = tl.program_id(0)
    room = tl.load(most + number)
    limit, up_to, missing = tl.load(limits + number), tl.full([], INFINITE, tl.int32), room
    if (tl.load(totals + 2 * number) > room) & (tl.load(totals + 2 * number + 1) > 0):
        values = pointed(v, number, LISTED, ALIGNED)
        n = tl.load(lengths + number).to(tl.int32)
        limit, missing = _k_th(values, n, room, TILE)
        up_to = limit
        tile = tl.load(firsts + number)
        for first in range(0, n, TILE):
            bits = tile_sizes(values + first, n - first, TILE)
            above = tl.sum((bits > limit).to(tl.int32), 0).to(tl.int64)
            both = (above << 32) | tl.sum((bits == limit).to(tl.int32), 0).to(tl.int64)
            tl.atomic_add(groups + tile // GROUP, both - tl.load(tallies + tile), sem="relaxed")
            tl.debug_barrier()  # all threads have read it
            tl.store(tallies + tile, both)
            tile += 1
    state += number * STATE
    tl.store(state, limit)
    tl.store(state + 1, up_to)
    tl.store(state + 2, missing)

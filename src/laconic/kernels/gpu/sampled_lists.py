"""Limits that are estimated from samples, of a list of tensors in one launch, and the rare tensor of which more passes
than may be sent, with NaN among it.

The k-th largest magnitude is found by counting digits, from the first on, each among values that share the digits found
so far. Of a sample few share the first twelve bits, and its values lie in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels.gpu.compaction import GROUP, set_bits
from laconic.kernels.gpu.limits import INFINITE, size
from laconic.kernels.gpu.radix import DIGIT, STATE, next_digit_of, tile_sizes
from laconic.kernels.gpu.triton_helpers import draw, key_of, pointed

_LEAST = tl.constexpr(0x00800000)  # the bits of the least normal number
COUNTED = tl.constexpr(4096 + 1024 + 512 + 4)
"""The counts of a sample's digits, of twelve, ten and nine bits, and of the programs that are done."""


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


@triton.jit
def _shared_digit(values, n, found, k, counts, SHIFT: tl.constexpr, BITS: tl.constexpr, TILE: tl.constexpr):
    """Do as `_next_digit` where few values share the digits found so far: each adds to a count in memory that was
    zero."""
    for first in range(0, n, TILE):
        i = first + tl.arange(0, TILE)
        bits = size(tl.load(values + i, mask=i < n, other=0.0, cache_modifier=".cg"))
        shared = (i < n) & ((bits >> (SHIFT + BITS)) == found)
        tl.atomic_add(counts + ((bits >> SHIFT) & ((1 << BITS) - 1)), 1, mask=shared, sem="relaxed")
    tl.debug_barrier()
    digit, rank = _counted_digit(counts, k, 1 << BITS)
    return (found << BITS) | digit, rank


@triton.jit
def _counted_digit(counts, k, DIGITS: tl.constexpr):
    """Return the digit of the k-th largest, and its rank among those with this digit; other programs have counted."""
    return next_digit_of(tl.load(counts + tl.arange(0, DIGITS), cache_modifier=".cg"), k, DIGITS)


@triton.jit(do_not_specialize=["keys"])
def sample_limits(x, error, lengths, looked, ranks, begins, keys, scratch, counts, limits, TILE: tl.constexpr,
                  FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Find the limit of a tensor: the k-th largest of `looked` values of x + error (FED), or x. Every program draws a
    tile of them and counts their leading twelve bits; a tensor's last one finds the limit."""
    first, number = tl.program_id(0) * TILE, tl.program_id(1)
    n, count = tl.load(lengths + number), tl.load(looked + number)
    drawn = count < n
    count = tl.minimum(n, count).to(tl.int32)
    if first < count:
        own = pointed(x, number, LISTED, ALIGNED)
        low, high = key_of(keys, number)
        sample, counts = scratch + tl.load(begins + number), counts + number * COUNTED
        i = first + tl.arange(0, TILE)
        inside = i < count
        at = tl.where(drawn, (draw(i, low, high).to(tl.int64) * n) >> 24, i.to(tl.int64))
        v = tl.load(own + at, mask=inside, other=0.0)
        if FED:
            v += tl.load(pointed(error, number, LISTED, ALIGNED) + at, mask=inside, other=0.0)
        tl.store(sample + i, v, mask=inside)
        tl.atomic_add(counts + (size(v) >> 19), 1, mask=inside, sem="relaxed")
        tl.debug_barrier()
        done = tl.atomic_add(counts + (COUNTED - 1), 1)
        if done == (count - 1) // TILE:
            found, rank = _counted_digit(counts, tl.load(ranks + number), 4096)
            found, rank = _shared_digit(sample, count, found, rank, counts + 4096, 9, 10, TILE)
            found, rank = _shared_digit(sample, count, found, rank, counts + 5120, 0, 9, TILE)
            tl.store(limits + number, tl.maximum(found, _LEAST))


@triton.jit
def settle(v, lengths, firsts, limits, most, begins, totals, state, tallies, groups, words, TILE: tl.constexpr,
           LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Decide what is sent of one tensor: what passes, at most the first so many; where there is NaN and more passes,
    the largest, which are tallied anew. The number of values is written before the tensor's part of the message."""
    number = tl.program_id(0)
    room, passing = tl.load(most + number), tl.load(totals + 2 * number)
    set_bits(words, 8 * (tl.load(begins + number) - 4), tl.minimum(passing, room), passing > 0)
    limit, up_to, missing = tl.load(limits + number), tl.full([], INFINITE, tl.int32), room
    again = tl.full([], 0, tl.int32)
    if (passing > room) & (tl.load(totals + 2 * number + 1) > 0):
        values = pointed(v, number, LISTED, ALIGNED)
        n = tl.load(lengths + number).to(tl.int32)
        limit, missing = _k_th(values, n, room, TILE)
        up_to, again = limit, again + 1
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
    tl.store(state + 3, again)

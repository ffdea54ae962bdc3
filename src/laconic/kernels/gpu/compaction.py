"""Chosen places and values of a list of tensors, written into one message in order, without waiting.

Two passes: one tallies how many values of each tile are above the tensor's limit and how many equal it, the other adds
up the tallies before its tile and so knows where its values go. Bits are set by an atomic `or` in memory that was zero:
a place may share its bytes with its neighbours. What was sent, and what is not finite, becomes zero in the memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels.gpu.limits import INFINITE, size
from laconic.kernels.gpu.radix import STATE, tile_sizes
from laconic.kernels.gpu.triton_helpers import located, pointed

GROUP = tl.constexpr(64)
"""The number of tiles whose tallies are also added up."""
BLOCK = tl.constexpr(256)


@triton.jit
def tally(tallies, groups, tile, above, equal):
    """Note how many values of a tile are above the limit and equal it: two numbers in one."""
    both = (above.to(tl.int64) << 32) | equal.to(tl.int64)
    tl.store(tallies + tile, both)
    tl.atomic_add(groups + tile // GROUP, both, sem="relaxed")


@triton.jit
def tallied(tallies, groups, tile):
    """Return the tallies of all tiles before this one, added up."""
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(0, tile // GROUP, BLOCK):
        j = first + tl.arange(0, BLOCK)
        total += tl.load(groups + j, mask=j < tile // GROUP, other=0)
    j = (tile // GROUP) * GROUP + tl.arange(0, GROUP)
    return tl.sum(total, 0) + tl.sum(tl.load(tallies + j, mask=j < tile, other=0), 0)


@triton.jit(do_not_specialize=["place_2"])
def tally_largest(v, place_0, place_1, place_2, state, tallies, groups, TILE: tl.constexpr, LISTED: tl.constexpr,
                  ALIGNED: tl.constexpr):  # fmt: skip
    """Tally what is above each tensor's limit, and what equals it."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    bits = tile_sizes(pointed(v, number, LISTED, ALIGNED) + base, n - base, TILE)
    limit = tl.load(state + number * STATE)
    tally(tallies, groups, tl.program_id(0), tl.sum((bits > limit).to(tl.int32), 0),
          tl.sum((bits == limit).to(tl.int32), 0))  # fmt: skip


@triton.jit
def set_bits(words, bit, number, some):
    """Set the bits of whole numbers, each from its own bit of the message on."""
    word = words + (bit >> 5)
    both = number.to(tl.uint32, bitcast=True).to(tl.uint64) << (bit & 31).to(tl.uint64)
    high = (both >> 32).to(tl.uint32).to(tl.int32, bitcast=True)
    tl.atomic_or(word, both.to(tl.uint32).to(tl.int32, bitcast=True), mask=some, sem="relaxed")
    tl.atomic_or(word + 1, high, mask=some & (high != 0), sem="relaxed")


@triton.jit
def write_tile(v, base, rest, before, state, begin, count, width, words, TILE: tl.constexpr, PART: tl.constexpr,
               KEPT: tl.constexpr):  # fmt: skip
    """Write what is chosen of a tile into the message, at most `count` of its tensor; `before` are the tallies of the
    tensor's tiles before it. KEPT: v is a memory. The tile is processed in parts, so that few registers are held and
    many programs run at once."""
    limit, up_to, missing = tl.load(state), tl.load(state + 1), tl.load(state + 2)
    values = 8 * (begin + ((count.to(tl.int64) * width + 7) >> 3))
    above_before, equal_before = (before >> 32).to(tl.int32), (before & 0xFFFFFFFF).to(tl.int32)
    for first in range(0, TILE, PART):
        i = first + tl.arange(0, PART)
        x = tl.load(v + i, mask=i < rest, other=0.0)
        bits = tl.where(i < rest, size(x), -1)
        above = bits > up_to
        equal = (bits >= limit) & (bits <= up_to)
        both = tl.cumsum(above.to(tl.int32) + (equal.to(tl.int32) << 16), 0)  # inclusive
        above_here = above_before + (both & 0xFFFF) - above.to(tl.int32)
        equal_here = equal_before + (both >> 16) - equal.to(tl.int32)
        taken = above | (equal & (equal_here < missing))
        into = (above_here + tl.minimum(equal_here, missing)).to(tl.int64)
        taken &= into < count  # as it always is, where exactly k are sent
        set_bits(words, 8 * begin + into * width, (base + i).to(tl.int32), taken)
        set_bits(words, values + into * 32, x.to(tl.int32, bitcast=True), taken)
        if KEPT:
            tl.store(v + i, tl.zeros_like(x), mask=taken | (bits == INFINITE))
        above_before += tl.sum(above.to(tl.int32), 0)
        equal_before += tl.sum(equal.to(tl.int32), 0)


@triton.jit(do_not_specialize=["place_2"])
def write_chosen(v, place_0, place_1, place_2, ks, widths, begins, state, tallies, groups, words, TILE: tl.constexpr,
                 PART: tl.constexpr, KEPT: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Write places and values into the message, k of each tensor."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    tile = tl.program_id(0)
    if tl.load(tallies + tile) != 0:
        before = tallied(tallies, groups, tile) - tallied(tallies, groups, tile - (base // TILE).to(tl.int32))
        write_tile(pointed(v, number, LISTED, ALIGNED) + base, base, n - base, before, state + number * STATE,
                   tl.load(begins + number), tl.load(ks + number), tl.load(widths + number), words, TILE, PART,
                   KEPT)  # fmt: skip

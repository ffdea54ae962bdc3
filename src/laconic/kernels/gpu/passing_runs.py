"""What passes the limits of a list of tensors, written into one message after a single pass over the data.

The pass makes one bit of each element, 32 to a word, and copies what passes of a tile to places of the tile's own in a
scratch buffer, while it still lies in the cache. The launch after it moves these runs into the message, at most so many
values of each tensor. A tile of which more passes than it has places for is read again.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels.gpu.compaction import set_bits, tallied, tally, write_tile
from laconic.kernels.gpu.limits import INFINITE, size
from laconic.kernels.gpu.radix import STATE
from laconic.kernels.gpu.selection import dealt, ones, written
from laconic.kernels.gpu.triton_helpers import loaded, located, pointed, stored

WIDTH = tl.constexpr(32)
"""How much of each run is moved at once."""


@triton.jit
def _copy_passing(x, error, rest, limit, run, TILE: tl.constexpr, OWN: tl.constexpr, FED: tl.constexpr,
                  MASKED: tl.constexpr):  # fmt: skip
    """Copy what passes of x + error, which is left in `error`, or of x; return how many those are, and how many are
    NaN."""
    bit = tl.arange(0, 32)[None, :]
    i = tl.arange(0, TILE // 32)[:, None] * 32 + bit
    v = loaded(x, i, rest, MASKED)
    if FED:
        v += loaded(error, i, rest, MASKED)
    passes = size(v) >= limit  # no limit is zero, which stands behind the end
    words = dealt(tl.sum(tl.where(passes, 1 << bit, 0), 1))
    each = ones(words)
    count = tl.sum(each, 0)
    if count <= OWN:
        written(x, error, words, tl.cumsum(each, 0) - each, tl.max(each, 0), run, TILE, FED)
    if FED:
        tl.debug_barrier()  # wait until all threads have read what is overwritten
        stored(error, i, rest, v, MASKED)
    return count, tl.sum(tl.sum((v != v).to(tl.int32), 1), 0)


@triton.jit(do_not_specialize=["place_2"])
def copy_passing(x, error, place_0, place_1, place_2, limits, totals, tallies, groups, runs, TILE: tl.constexpr,
                 OWN: tl.constexpr, FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Copy what passes each tensor's limit, and tally it as if all were equal; of each tensor also count it, and how
    much of it is NaN."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    limit = tl.load(limits + number)
    runs += tl.program_id(0).to(tl.int64) * OWN
    if base + TILE <= n:
        passing, nans = _copy_passing(x, error, n - base, limit, runs, TILE, OWN, FED, False)
    else:
        passing, nans = _copy_passing(x, error, n - base, limit, runs, TILE, OWN, FED, True)
    tally(tallies, groups, tl.program_id(0), passing * 0, passing)
    tl.atomic_add(totals + 2 * number, passing, sem="relaxed")
    if nans > 0:
        tl.atomic_add(totals + 2 * number + 1, nans, sem="relaxed")


@triton.jit(do_not_specialize=["place_2"])
def write_passing(v, place_0, place_1, place_2, firsts, ks, widths, begins, state, tallies, groups, runs, words,
                  TILE: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, OWN: tl.constexpr, KEPT: tl.constexpr,
                  LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Write the runs of so many tiles of a tensor (ROWS) into the message, at most k of each tensor. KEPT: v is a
    memory, in which what was sent, and what is not finite, becomes zero."""
    number, base, n = located(place_0, place_1, place_2, TILE * ROWS, LISTED)
    first = tl.load(firsts + number)
    begin, most, width = tl.load(begins + number), tl.load(ks + number), tl.load(widths + number)
    again = tl.load(state + number * STATE + 3) != 0
    row = tl.arange(0, ROWS)
    inside = base + row * TILE < n
    tile = first + (base // TILE).to(tl.int32)
    both = tl.load(tallies + tile + row, mask=inside, other=0)
    if tl.sum(both, 0) != 0:
        before = tallied(tallies, groups, tile) - tallied(tallies, groups, first)
        before += tl.cumsum(both, 0) - both
        own = pointed(v, number, LISTED, ALIGNED) + base
        count = (both & 0xFFFFFFFF).to(tl.int32)
        direct = (both != 0) & (again | (count > OWN))
        count = tl.where(direct, 0, count)
        values = 8 * (begin + ((most.to(tl.int64) * width + 7) >> 3))
        for start in range(0, tl.max(count, 0), WIDTH):
            j = start + tl.arange(0, WIDTH)[None, :]
            some = j < count[:, None]
            word = tl.load(runs + (tile + row).to(tl.int64)[:, None] * OWN + j, mask=some, other=0)
            place, bits = row[:, None] * TILE + word.to(tl.int32), (word >> 32).to(tl.int32)
            into = before[:, None] + j
            sent = some & (into < most)
            set_bits(words, 8 * begin + into * width, (base + place).to(tl.int32), sent)
            set_bits(words, values + into * 32, bits, sent)
            if KEPT:
                sent |= some & (size(bits.to(tl.float32, bitcast=True)) == INFINITE)
                tl.store(own + place, tl.zeros([ROWS, WIDTH], tl.float32), mask=sent)
        if tl.max(direct.to(tl.int32), 0) > 0:
            for r in range(ROWS):
                if tl.sum(tl.where(row == r, direct.to(tl.int32), 0), 0) > 0:
                    write_tile(own + r * TILE, base + r * TILE, n - base - r * TILE,
                               tl.sum(tl.where(row == r, before, 0), 0), state + number * STATE, begin, most, width,
                               words, TILE, PART, KEPT)  # fmt: skip

"""The k-th largest magnitude of each tensor of a list, exactly and without waiting, and the memory's sum on the way.

Bit patterns of magnitudes, read as integers, have the order of magnitudes. Three passes count digits of 8, 8 and 15
bits, from the first on, each among values that share the digits found so far. The last digit is counted twice, in 128
groups and in full, so that every program that needs the result finds it from a few hundred counts. Ties are common
(zeros; numbers that were rounded to 16 bits): a tile whose values share all bits counts them in one addition. A program
counts several tiles (ROWS) before it adds to the tensor's counts, where all programs would wait for one another.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.gpu.limits import size
from laconic.kernels.gpu.lists import pointers, tiled
from laconic.kernels.gpu.triton_helpers import loaded, located, pointed, stored
from laconic.kernels.lists import TensorList

TILE = 4096
"""The number of elements that are read at once."""
_WARPS = 4
_PROGRAMS, _MOST_ROWS = 1024, 64  # programs that keep a GPU busy; tiles of one of them
SECOND, THIRD, FINE, LAST = tl.constexpr(23), tl.constexpr(15), tl.constexpr(8), tl.constexpr((1 << 15) - 1)
"""The bits below the first digit, below the second and below the groups of the third; and a mask of the third."""
DIGIT, GROUPS = tl.constexpr(256), tl.constexpr(128)
AT_2, AT_GROUPS, AT_3 = tl.constexpr(256), tl.constexpr(512), tl.constexpr(640)
COUNTS = tl.constexpr(640 + (1 << 15))
"""The number of counts of one tensor."""
STATE = tl.constexpr(4)
"""The numbers of a tensor's state: the limit's bits, the bits up to which values count as equal to it, how many of
those are sent (all that are larger are), and whether the tallies were made again."""


@triton.jit
def next_digit_of(count, k, DIGITS: tl.constexpr):
    """Return the digit of the k-th largest, and its rank among those with this digit."""
    digit = tl.arange(0, DIGITS)
    reach = tl.sum(count, 0) - tl.cumsum(count, 0) + count  # have this digit or a higher one
    found = tl.maximum(tl.sum((reach >= k).to(tl.int32), 0) - 1, 0)
    return found, k - tl.sum(tl.where(digit > found, count, 0), 0)


@triton.jit
def next_digit(counts, k, DIGITS: tl.constexpr):
    """Do as `next_digit_of` with counts in memory."""
    return next_digit_of(tl.load(counts + tl.arange(0, DIGITS)), k, DIGITS)


@triton.jit
def first_digits(counts, k):
    """Return the first two digits of the k-th largest, and its rank among those that share them."""
    first, rank = next_digit(counts, k, DIGIT)
    second, rank = next_digit(counts + AT_2, rank, DIGIT)
    return (first << (SECOND - THIRD)) | second, rank


@triton.jit
def all_digits(counts, k):
    """Return the bits of the k-th largest, and how many that equal it are among the k largest."""
    found, rank = first_digits(counts, k)
    group, rank = next_digit(counts + AT_GROUPS, rank, GROUPS)
    last, rank = next_digit(counts + AT_3 + (group << FINE), rank, DIGIT)
    return (found << THIRD) | (group << FINE) | last, rank


@triton.jit
def sizes_fed(x, error, rest, TILE: tl.constexpr, FED: tl.constexpr, MASKED: tl.constexpr):
    """Return a tile's magnitudes, as whole numbers, of x + error, which is left in `error`, or of x."""
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED)
    if FED:
        v += loaded(error, i, rest, MASKED)
        stored(error, i, rest, v, MASKED)
    return size(v)


@triton.jit
def _digits(digit, some, TILE: tl.constexpr):
    """Return how many of some values of a tile have each digit."""
    others = TILE - tl.sum(some.to(tl.int32), 0)
    return tl.histogram(tl.where(some, digit, 0), DIGIT) - tl.where(tl.arange(0, DIGIT) == 0, others, 0)


@triton.jit
def _add_counts(counts, count):
    tl.atomic_add(counts + tl.arange(0, DIGIT), count, mask=count > 0, sem="relaxed")


@triton.jit(do_not_specialize=["place_2"])
def _count_first(x, error, place_0, place_1, place_2, counts, TILE: tl.constexpr, ROWS: tl.constexpr,
                 FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Count exponents of x + error, which is left in `error` (FED), or of x."""
    number, base, n = located(place_0, place_1, place_2, TILE * ROWS, LISTED)
    x = pointed(x, number, LISTED, ALIGNED)
    if FED:
        error = pointed(error, number, LISTED, ALIGNED)
    count = tl.zeros([DIGIT], tl.int32)
    for first in range(base, tl.minimum(base + TILE * ROWS, n), TILE):
        if first + TILE <= n:
            bits = sizes_fed(x + first, error + first, n - first, TILE, FED, False)
            count += tl.histogram(bits >> SECOND, DIGIT)
        else:
            bits = sizes_fed(x + first, error + first, n - first, TILE, FED, True)
            count += _digits(bits >> SECOND, tl.arange(0, TILE) < n - first, TILE)
    _add_counts(counts + number * COUNTS, count)


@triton.jit
def tile_values(v, rest, TILE: tl.constexpr):
    """Return a tile's values, zeros behind the end."""
    i = tl.arange(0, TILE)
    if rest >= TILE:
        x = tl.load(v + i)
    else:
        x = tl.load(v + i, mask=i < rest, other=0.0)
    return x


@triton.jit
def tile_sizes(v, rest, TILE: tl.constexpr):
    """Return a tile's magnitudes as whole numbers, -1 behind the end."""
    return tl.where(tl.arange(0, TILE) < rest, size(tile_values(v, rest, TILE)), -1)


@triton.jit(do_not_specialize=["place_2"])
def _count_second(v, place_0, place_1, place_2, ks, counts, TILE: tl.constexpr, ROWS: tl.constexpr,
                  LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Count the next eight bits, among values with the exponent that was found."""
    number, base, n = located(place_0, place_1, place_2, TILE * ROWS, LISTED)
    v = pointed(v, number, LISTED, ALIGNED)
    counts += number * COUNTS
    found, _ = next_digit(counts, tl.load(ks + number), DIGIT)
    count = tl.zeros([DIGIT], tl.int32)
    for first in range(base, tl.minimum(base + TILE * ROWS, n), TILE):
        bits = tile_sizes(v + first, n - first, TILE)
        shared = (bits >> SECOND) == found
        if tl.max(shared.to(tl.int32), 0) > 0:
            count += _digits((bits >> THIRD) & (DIGIT - 1), shared, TILE)
    _add_counts(counts + AT_2, count)


@triton.jit(do_not_specialize=["place_2"])
def _count_third(v, place_0, place_1, place_2, ks, counts, TILE: tl.constexpr, ROWS: tl.constexpr,
                 LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Count the last fifteen bits, among the few values that share all before them."""
    number, base, n = located(place_0, place_1, place_2, TILE * ROWS, LISTED)
    v = pointed(v, number, LISTED, ALIGNED)
    counts += number * COUNTS
    found, _ = first_digits(counts, tl.load(ks + number))
    for first in range(base, tl.minimum(base + TILE * ROWS, n), TILE):
        bits = tile_sizes(v + first, n - first, TILE)
        shared = (bits >> THIRD) == found
        digit = bits & LAST
        most = tl.max(tl.where(shared, digit, -1), 0)
        if most >= 0:
            if tl.min(tl.where(shared, digit, most), 0) == most:
                count = tl.sum(shared.to(tl.int32), 0)
                tl.atomic_add(counts + AT_GROUPS + (most >> FINE), count, sem="relaxed")
                tl.atomic_add(counts + AT_3 + most, count, sem="relaxed")
            else:
                tl.atomic_add(counts + AT_GROUPS + (digit >> FINE), 1, mask=shared, sem="relaxed")
                tl.atomic_add(counts + AT_3 + digit, 1, mask=shared, sem="relaxed")


@triton.jit
def _settle(ks, counts, state):
    """Write a tensor's limit, up to which values count as equal to it, and how many of those are sent."""
    number = tl.program_id(0)
    limit, missing = all_digits(counts + number * COUNTS, tl.load(ks + number))
    state += number * STATE
    tl.store(state, limit)
    tl.store(state + 1, limit)
    tl.store(state + 2, missing)


def find_limits(xs: TensorList, errors: TensorList | None, ks: Tensor, counts: Tensor, state: Tensor) -> None:
    """Write into `state` which values of each x + error, which is left in `error`, or of x, are the k largest; digits
    are counted in `counts`, which are zero."""
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(xs if errors is None else errors)
    fed, all_aligned = errors is not None, aligned and aligned_too
    rows = min(_MOST_ROWS, triton.next_power_of_2(sum(xs.lengths) // (TILE * _PROGRAMS) + 1))
    tiles = tiled(xs.lengths, TILE * rows, xs[0].device)
    grid = (tiles.count,)
    _count_first[grid](
        given, memory, *tiles.place, counts, TILE, rows, fed, tiles.listed, all_aligned, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    for launch in (_count_second, _count_third):
        launch[grid](memory, *tiles.place, ks, counts, TILE, rows, tiles.listed, aligned_too, num_warps=_WARPS)
    _settle[(len(xs),)](ks, counts, state, num_warps=_WARPS)

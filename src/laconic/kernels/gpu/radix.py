"""The k-th largest magnitude of each tensor of a list, exactly and without waiting, and the memory's sum on the way.

Bit patterns of magnitudes, read as integers, have the order of magnitudes. Three passes count digits of 8, 8 and 15
bits, from the first on, each among values that share the digits found so far. The last digit is counted twice, in 128
groups and in full, so that every program that needs the result finds it from a few hundred counts. Ties are common
(zeros; numbers that were rounded to 16 bits): a tile whose values share all bits counts them in one addition.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.gpu.limits import size
from laconic.kernels.gpu.lists import Tiles, pointers
from laconic.kernels.gpu.triton_helpers import loaded, located, pointed, stored

TILE = 4096
"""The number of elements of one program."""
_WARPS = 4
SECOND, THIRD, FINE, LAST = tl.constexpr(23), tl.constexpr(15), tl.constexpr(8), tl.constexpr((1 << 15) - 1)
"""The bits below the first digit, below the second and below the groups of the third; and a mask of the third."""
DIGIT, GROUPS = tl.constexpr(256), tl.constexpr(128)
AT_2, AT_GROUPS, AT_3 = tl.constexpr(256), tl.constexpr(512), tl.constexpr(640)
COUNTS = tl.constexpr(640 + (1 << 15))
"""The number of counts of one tensor."""


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
def _add_counts(counts, digit, some, TILE: tl.constexpr):
    """Count the digits of some values of a tile."""
    at = tl.arange(0, DIGIT)
    others = TILE - tl.sum(some.to(tl.int32), 0)
    count = tl.histogram(tl.where(some, digit, 0), DIGIT) - tl.where(at == 0, others, 0)
    tl.atomic_add(counts + at, count, mask=count > 0, sem="relaxed")


@triton.jit(do_not_specialize=["place_2"])
def _count_first(x, error, place_0, place_1, place_2, counts, TILE: tl.constexpr, FED: tl.constexpr,
                 LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Count exponents of x + error, which is left in `error` (FED), or of x."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    counts += number * COUNTS
    if base + TILE <= n:
        bits = sizes_fed(x, error, n - base, TILE, FED, False)
        _add_counts(counts, bits >> SECOND, bits >= 0, TILE)
    else:
        bits = sizes_fed(x, error, n - base, TILE, FED, True)
        _add_counts(counts, bits >> SECOND, tl.arange(0, TILE) < n - base, TILE)


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
def _count_second(v, place_0, place_1, place_2, ks, counts, TILE: tl.constexpr, LISTED: tl.constexpr,
                  ALIGNED: tl.constexpr):  # fmt: skip
    """Count the next eight bits, among values with the exponent that was found."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    bits = tile_sizes(pointed(v, number, LISTED, ALIGNED) + base, n - base, TILE)
    counts += number * COUNTS
    found, _ = next_digit(counts, tl.load(ks + number), DIGIT)
    shared = (bits >> SECOND) == found
    if tl.max(shared.to(tl.int32), 0) > 0:
        _add_counts(counts + AT_2, (bits >> THIRD) & (DIGIT - 1), shared, TILE)


@triton.jit(do_not_specialize=["place_2"])
def _count_third(v, place_0, place_1, place_2, ks, counts, TILE: tl.constexpr, LISTED: tl.constexpr,
                 ALIGNED: tl.constexpr):  # fmt: skip
    """Count the last fifteen bits, among the few values that share all before them."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    bits = tile_sizes(pointed(v, number, LISTED, ALIGNED) + base, n - base, TILE)
    counts += number * COUNTS
    found, _ = first_digits(counts, tl.load(ks + number))
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


def count_digits(
    xs: Sequence[Tensor], errors: Sequence[Tensor] | None, tiles: Tiles, ks: Tensor, counts: Tensor
) -> None:
    """Count all digits of each x + error, which is left in `error`, or of x, into `counts`, which are zero."""
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(xs if errors is None else errors)
    fed, all_aligned = errors is not None, aligned and aligned_too
    grid = (tiles.count,)
    _count_first[grid](
        given, memory, *tiles.place, counts, TILE, fed, tiles.listed, all_aligned, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    for launch in (_count_second, _count_third):
        launch[grid](memory, *tiles.place, ks, counts, TILE, tiles.listed, aligned_too, num_warps=_WARPS)

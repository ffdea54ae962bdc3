"""3LC's digits at memory speed: error feedback + ternary + five to a byte, and the mean of many workers' digits.

What a digit stands for is a multiple of the largest magnitude, so that all values are read before the first is
encoded: one pass reads both inputs, another reads them again and writes errors and bytes, 20.2 bytes an element. A byte
joins one digit from each fifth of a tensor, so that both sides read and write five streams in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import codes, reference
from laconic.kernels.gpu.eligibility import averaged, plain, unrolled
from laconic.kernels.gpu.lists import Tiles, outputs, pointers, starts, table, tiled, views
from laconic.kernels.gpu.triton_helpers import finite, loaded, located, number_at, pointed, put_number, stored
from laconic.kernels.lists import listed
from laconic.kernels.reference.trits import WEIGHTS

_LOOKED, _LOOKED_WARPS = 2048, 1
_TILE, _WARPS = 256, 1  # bytes of a program, of five elements each
_MEAN_TILE, _MEAN_WARPS = 512, 4
MAGIC = tl.constexpr(1.5 * 2**23)
LEAST = tl.constexpr(2.0**-149)
W0, W1, W2, W3, W4 = (tl.constexpr(float(w)) for w in WEIGHTS)
ZEROS = tl.constexpr(float(sum(WEIGHTS)))


@triton.jit(do_not_specialize=["place_2"])
def _largest(x, error, place_0, place_1, place_2, largest, TILE: tl.constexpr, FED: tl.constexpr, LISTED: tl.constexpr,
             ALIGNED: tl.constexpr):  # fmt: skip
    """Find the largest |v| of each tensor, as a whole number: bits of floats without a sign are in the order of floats,
    and those of NaN are above all. So it is exact in any order."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    i = tl.arange(0, TILE)
    if base + TILE <= n:
        v = loaded(x, i, n - base, False)
        if FED:
            v += loaded(error, i, n - base, False)
    else:
        v = loaded(x, i, n - base, True)
        if FED:
            v += loaded(error, i, n - base, True)
    tl.atomic_max(largest + number, tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0), sem="relaxed")


@triton.jit
def _stretch(x, error, rest, most, half, TILE: tl.constexpr, FED: tl.constexpr, MASKED: tl.constexpr):
    """Return a stretch's digits as floats, and keep v minus what they stand for."""
    j = tl.arange(0, TILE)
    v = loaded(x, j, rest, MASKED)
    if FED:
        v += loaded(error, j, rest, MASKED)
    one = (v.to(tl.uint32, bitcast=True) & 0x80000000 | 0x3F800000).to(tl.float32, bitcast=True)
    digit = tl.where(tl.abs(v) >= half, one, 0.0)
    if FED:
        stored(error, j, rest, finite(v - digit * most), MASKED)
    return digit


@triton.jit
def _five(x, error, stretch, n, base, most, out, TILE: tl.constexpr, FED: tl.constexpr, MASKED: tl.constexpr):
    """Compute the bytes of this tile. Small whole numbers are exact as floats, and a GPU multiplies those at twice the
    speed."""
    half = most * 0.5
    half = tl.where(half == 0, LEAST, half)  # a zero has no sign
    rest = n - base
    byte = tl.full([TILE], ZEROS, tl.float32)
    byte = tl.fma(_stretch(x, error, tl.minimum(rest, stretch - base), most, half, TILE, FED, MASKED), W0, byte)
    x, error, rest = x + stretch, error + stretch, rest - stretch
    byte = tl.fma(_stretch(x, error, tl.minimum(rest, stretch - base), most, half, TILE, FED, MASKED), W1, byte)
    x, error, rest = x + stretch, error + stretch, rest - stretch
    byte = tl.fma(_stretch(x, error, tl.minimum(rest, stretch - base), most, half, TILE, FED, MASKED), W2, byte)
    x, error, rest = x + stretch, error + stretch, rest - stretch
    byte = tl.fma(_stretch(x, error, tl.minimum(rest, stretch - base), most, half, TILE, FED, MASKED), W3, byte)
    x, error, rest = x + stretch, error + stretch, rest - stretch
    byte = tl.fma(_stretch(x, error, tl.minimum(rest, stretch - base), most, half, TILE, FED, MASKED), W4, byte)
    j = tl.arange(0, TILE)
    stored(out, j, stretch - base, byte.to(tl.int32).to(tl.uint8), MASKED)


@triton.jit(do_not_specialize=["place_2"])
def _keep_trits(x, error, place_0, place_1, place_2, lengths, largest, sparsity, message, parts_at, TILE: tl.constexpr,
                FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Store error ← v - its digit times M, for v = x + error, and M and digits in the message."""
    number, base, stretch = located(place_0, place_1, place_2, TILE, LISTED)
    if EVEN:
        stretch = stretch // 4 * 4  # shows the compiler that all streams begin at multiples of 16 bytes
    n = tl.load(lengths + number)
    x = pointed(x, number, LISTED or not EVEN, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED or not EVEN, ALIGNED) + base
    most = tl.load(largest + number).to(tl.float32, bitcast=True) * sparsity
    most = tl.where(most == most, most, float("nan"))
    out = message
    if LISTED or not EVEN:
        out += tl.load(parts_at + number)
    if base == 0:
        put_number(out, most, True)
    out += 4 + base
    if 4 * stretch + base + TILE <= n:
        _five(x, error, stretch, n, base, most, out, TILE, FED, False)
    else:
        _five(x, error, stretch, n, base, most, out, TILE, FED, True)


@dataclass(frozen=True)
class _Plan:
    """The layout that depends on lengths alone."""

    lengths: Tensor
    parts_at: Tensor  # where each tensor's part of the message begins
    size: int  # of the message
    looked: Tiles
    kept: Tiles
    mean_tiles: Tiles
    even: bool  # whether stretches are multiples of 16 bytes


@lru_cache(1024)
def _plan(lengths: tuple[int, ...], device: torch.device) -> _Plan:
    stretches = tuple(-(-n // 5) for n in lengths)
    at = starts([4 + stretch for stretch in stretches])
    tiles = tiled(lengths, _LOOKED, device), tiled(stretches, _TILE, device), tiled(stretches, _MEAN_TILE, device)
    tables = table(lengths, torch.int64, device), table(at[:-1], torch.int64, device)
    return _Plan(*tables, at[-1], *tiles, not any(stretch % 4 for stretch in stretches))


def encode_trits(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, sparsity: float) -> Tensor:
    if not plain(*xs, *(errors or ())):
        return codes.encode_trits(reference, xs, errors, sparsity)
    xs, memories = listed(xs), listed(errors or xs)
    device, plan = xs[0].device, _plan(xs.lengths, xs[0].device)
    largest = torch.zeros(len(xs), dtype=torch.int32, device=device)
    message = torch.empty(plan.size, dtype=torch.uint8, device=device)
    (given, aligned), (memory, aligned_too), tiles = pointers(xs), pointers(memories), plan.looked
    how = {"FED": errors is not None, "LISTED": tiles.listed, "ALIGNED": aligned and aligned_too}
    _largest[(tiles.count,)](
        given, memory, *tiles.place, largest, _LOOKED, **how, num_warps=_LOOKED_WARPS, enable_fp_fusion=False
    )
    if not plan.even:
        how["ALIGNED"] = False
        given, memory = (table(some.places, torch.int64, device) for some in (xs, memories))
    tiles = plan.kept
    _keep_trits[(tiles.count,)](
        given, memory, *tiles.place, plan.lengths, largest, sparsity, message, plan.parts_at, _TILE, **how,
        EVEN=plan.even, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return message


@triton.jit
def _peeled(f, most, total, WEIGHT: tl.constexpr):
    """Add the digit of this weight to the total and return the rest, for numbers that have no higher digits.

    The digit is the nearest whole number of weights, since what lower digits add is less than half of one.
    """
    digit = tl.fma(f, 1 / WEIGHT, MAGIC) - MAGIC
    return tl.fma(digit, -WEIGHT, f), tl.fma(digit, most, total)  # a digit times M is exact: rounded once either way


@triton.jit
def _heard(row, base, rest, t0, t1, t2, t3, t4, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Return the five sums plus this worker's values."""
    j = tl.arange(0, TILE)
    most = number_at(row)
    if MASKED:
        byte = tl.load(row + 4 + base + j, mask=j < rest, other=0)
    else:
        byte = tl.load(row + 4 + base + j)
    f = byte.to(tl.float32) - ZEROS
    f, t0 = _peeled(f, most, t0, W0)
    f, t1 = _peeled(f, most, t1, W1)
    f, t2 = _peeled(f, most, t2, W2)
    f, t3 = _peeled(f, most, t3, W3)
    return t0, t1, t2, t3, tl.fma(f, most, t4)


@triton.jit
def _mean_tile(rows, stride, workers, total, base, stretch, n, TILE: tl.constexpr, WORKERS: tl.constexpr,
               EVEN: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    t0 = tl.zeros([TILE], tl.float32)
    t1, t2, t3, t4 = t0, t0, t0, t0
    step, rest = tl.cast(stride, tl.int64), stretch - base
    if EVEN:
        step = tl.multiple_of(step, 4)
    if WORKERS:
        for r in tl.static_range(WORKERS):
            t0, t1, t2, t3, t4 = _heard(rows + r * step, base, rest, t0, t1, t2, t3, t4, TILE, MASKED)
    else:
        for r in range(workers):
            t0, t1, t2, t3, t4 = _heard(rows + r * step, base, rest, t0, t1, t2, t3, t4, TILE, MASKED)
    j = tl.arange(0, TILE)
    total += base
    _put(total, j, stretch, n - base, base, averaged(t0, workers, WORKERS), 0, MASKED)
    _put(total, j, stretch, n - base, base, averaged(t1, workers, WORKERS), 1, MASKED)
    _put(total, j, stretch, n - base, base, averaged(t2, workers, WORKERS), 2, MASKED)
    _put(total, j, stretch, n - base, base, averaged(t3, workers, WORKERS), 3, MASKED)
    _put(total, j, stretch, n - base, base, averaged(t4, workers, WORKERS), 4, MASKED)


@triton.jit
def _put(total, j, stretch, rest, base, mean, K: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:
        tl.store(total + K * stretch + j, mean, mask=(j < stretch - base) & (j < rest - K * stretch))
    else:
        tl.store(total + K * stretch + j, mean)


@triton.jit(do_not_specialize=["place_2", "workers"])
def _mean_of_trits(rows, stride, workers, parts_at, lengths, total, begins, place_0, place_1, place_2,
                   TILE: tl.constexpr, WORKERS: tl.constexpr, LISTED: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    number, base, stretch = located(place_0, place_1, place_2, TILE, LISTED)
    n = tl.load(lengths + number)
    at, begin = tl.load(parts_at + number), tl.load(begins + number)
    if EVEN:  # read and write in fours, so that nothing changes place between threads
        stretch, at, begin = stretch // 4 * 4, tl.multiple_of(at, 4), tl.multiple_of(begin, 4)
    rows += at
    total += begin
    if 4 * stretch + base + TILE <= n:
        _mean_tile(rows, stride, workers, total, base, stretch, n, TILE, WORKERS, EVEN, False)
    else:
        _mean_tile(rows, stride, workers, total, base, stretch, n, TILE, WORKERS, EVEN, True)


def mean_of_trits(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    device, lengths, rows = rows.device, tuple(lengths), rows.contiguous()
    plan, (means, begins), (workers, stride) = _plan(lengths, device), outputs(lengths, device), rows.shape
    even = plan.even and stride % 4 == 0 and rows.data_ptr() % 16 == 0
    _mean_of_trits[(plan.mean_tiles.count,)](
        rows, stride, workers, plan.parts_at, plan.lengths, means, begins, *plan.mean_tiles.place, _MEAN_TILE,
        unrolled(workers), plan.mean_tiles.listed, even, num_warps=_MEAN_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return views(means, lengths)

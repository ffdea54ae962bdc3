"""Rounding to levels at memory speed: error feedback + stochastic quantisation at 2, 4 or 8 bits, and sums of it.

A tensor's part of a message is its codes, then a scale for each bucket. Where a bucket fits into registers, one pass
finds its scale, rounds and keeps the error: 4 + b/8 bytes an element, 12 + b/8 with a memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import messages, reference
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.lists import Tiles, keys_of, pointers, starts, table, tiled
from laconic.kernels.gpu.means import MAGIC, means
from laconic.kernels.gpu.triton_helpers import (
    INTERPRETED,
    draw,
    finite,
    key_of,
    loaded,
    located,
    pointed,
    put_number,
    stored,
    summed,
)
from laconic.kernels.lists import listed
from laconic.kernels.messages import WIDTHS

_TILE = 1024  # elements that a warp holds
_LEAST, _MOST = 32, 4096  # buckets between which a warp or two hold one in registers


@triton.jit
def rounded(a, place, low, high, STEPS: tl.constexpr):
    """Return the level for a share of steps, rounded up with the probability of its fraction: ⌈a - draw⌉, at most
    `STEPS`; NaN takes the last one.

    On a GPU without a comparison: rounding towards +∞ never crosses a whole number, so a - draw may be rounded so, and
    so may its sum with a number (1.5·2²³) whose neighbours differ by one.
    """
    k = draw(place, low, high).to(tl.float32)
    if INTERPRETED:
        whole = tl.floor(a)
        level = whole + (k * (2.0**-24) < a - whole).to(tl.float32)
        return tl.where(level < STEPS, level, STEPS)
    else:
        sum = tl.inline_asm_elementwise(
            """{
            fma.rp.f32 $0, $2, 0fB3800000, $1;
            min.f32 $0, $0, $3;
            add.rp.f32 $0, $0, 0f4B400000;
            }""",
            "=&f,f,f,f",
            [a, k, tl.full([], STEPS, tl.float32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )  # fmt: skip
        return sum - MAGIC


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _bytes(level, COUNT: tl.constexpr, STEPS: tl.constexpr, EACH: tl.constexpr):
    """EACH codes to a byte, the first in its lowest place: added up as floats, which has no cost beside memory."""
    BITS: tl.constexpr = 8 // EACH
    weights = (1 << (tl.arange(0, EACH) * BITS)).to(tl.float32)
    whole = tl.sum(tl.reshape(level + STEPS, [COUNT // EACH, EACH]) * weights[None, :], axis=1)
    return (whole + MAGIC).to(tl.int32, bitcast=True).to(tl.uint8)


@triton.jit
def _encode(v, error, share, rest, base, low, high, codes, scales, BUCKET: tl.constexpr, STEPS: tl.constexpr,
            EACH: tl.constexpr, NORM: tl.constexpr, FED: tl.constexpr, SHARED: tl.constexpr,
            MASKED: tl.constexpr):  # fmt: skip
    """Encode one bucket."""
    i = tl.arange(0, BUCKET)
    if NORM == "max":
        scale = tl.reduce(tl.abs(v), 0, _larger)
    else:
        scale = tl.sqrt_rn(tl.sum(summed(v * v, 1, BUCKET, 1024), axis=0))
    factor = tl.where(scale > 0, tl.div_rn(tl.full([], STEPS, tl.float32), scale), 0.0)
    level = rounded(tl.abs(v) * factor, i, low ^ base.to(tl.uint32), high, STEPS)  # base + i is base ^ i
    level = tl.where(v < 0, -level, level)
    if FED:
        value = level * (scale * (1 / STEPS))
        stored(error, i, rest, finite(v - (value * share if SHARED else value)), MASKED)
    if MASKED:
        level = tl.where(i < rest, level, -STEPS)  # the code 0
    stored(codes, tl.arange(0, BUCKET // EACH), (rest + EACH - 1) // EACH, _bytes(level, BUCKET, STEPS, EACH), MASKED)
    put_number(scales, scale, rest > 0)


@triton.jit
def _encode_tile(x, error, share, rest, base, low, high, codes, scales, BUCKET: tl.constexpr, STEPS: tl.constexpr,
                 EACH: tl.constexpr, NORM: tl.constexpr, TILE: tl.constexpr, FED: tl.constexpr, SHARED: tl.constexpr,
                 MASKED: tl.constexpr):  # fmt: skip
    """Encode buckets one by one, since a scale that is one number needs no place in a layout; all are loaded first."""
    i = tl.arange(0, BUCKET)
    buckets = ()  # type: ignore[var-annotated]
    for k in tl.static_range(0, TILE, BUCKET):
        v = loaded(x + k, i, rest - k, MASKED)
        if FED:
            v += loaded(error + k, i, rest - k, MASKED)
        buckets = buckets + (v,)  # type: ignore[assignment]  # noqa: RUF005
    for k in tl.static_range(0, TILE, BUCKET):
        _encode(buckets[k // BUCKET], error + k, share, rest - k, base + k, low, high, codes + k // EACH,
                scales + k // BUCKET * 4, BUCKET, STEPS, EACH, NORM, FED, SHARED, MASKED)  # fmt: skip


@triton.jit(do_not_specialize=["keys"])
def _encode_levels(x, error, shares, place_0, place_1, place_2, keys, message, codes_at, BUCKET: tl.constexpr,
                   STEPS: tl.constexpr, EACH: tl.constexpr, NORM: tl.constexpr, TILE: tl.constexpr, FED: tl.constexpr,
                   SHARED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    share = 1.0
    if SHARED:
        share = tl.load(shares + number)
    low, high = key_of(keys, number)
    codes = message
    if LISTED:
        at = tl.load(codes_at + number)
        codes += tl.multiple_of(at, 4) if EVEN else at
    scales = codes + (n + EACH - 1) // EACH + base // BUCKET * 4
    codes += base // EACH
    if base + TILE <= n:
        _encode_tile(x, error, share, n - base, base, low, high, codes, scales, BUCKET, STEPS, EACH, NORM, TILE, FED,
                     SHARED, False)  # fmt: skip
    else:
        _encode_tile(x, error, share, n - base, base, low, high, codes, scales, BUCKET, STEPS, EACH, NORM, TILE, FED,
                     SHARED, True)  # fmt: skip


def fits(bucket: int) -> bool:
    """Tell whether buckets of this length are encoded in one pass."""
    return _LEAST <= bucket <= _MOST and bucket & (bucket - 1) == 0


@lru_cache(1024)
def _plan(lengths: tuple[int, ...], bucket: int, each: int, device: torch.device) -> tuple[Tiles, Tensor, int, bool]:
    """Return the tiles, where each tensor's part of the message begins, the length of the message, and whether all
    parts begin at multiples of four bytes."""
    at = starts([-(-n // each) + 4 * -(-n // bucket) for n in lengths])
    tiles, even = tiled(lengths, max(_TILE, bucket), device), not any(where % 4 for where in at)
    return tiles, table(at[:-1], torch.int64, device), at[-1], even


def encode_levels(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    bucket: int,
    steps: int,
    norm: str,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not fits(bucket) or not xs.plain or not (errors or xs).plain:
        return messages.encode_levels(reference, xs, errors, bucket, steps, norm, keys, shares)
    device, each, tile = xs[0].device, 8 // WIDTHS[steps], max(_TILE, bucket)
    tiles, at, size, even = _plan(xs.lengths, bucket, each, device)
    message = torch.empty(size, dtype=torch.uint8, device=device)
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(errors or xs)
    how = {"LISTED": len(xs) > 1, "ALIGNED": aligned and aligned_too, "FED": errors is not None}
    counted = at if shares is None else table(tuple(shares), torch.float32, device)
    _encode_levels[(tiles.count,)](
        given, memory, counted, *tiles.place, keys_of(keys, device), message, at, bucket, steps, each, norm, tile,
        SHARED=shares is not None, EVEN=even, **how, num_warps=tile // _TILE, enable_fp_fusion=False,
    )  # fmt: skip
    return message


def mean_of_levels(
    rows: Tensor,
    lengths: Sequence[int],
    bucket: int,
    steps: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    if not fits(bucket) or not rows.is_contiguous() or not plain(*(out or ())):
        return messages.mean_of_levels(reference, rows, lengths, bucket, steps, out, shares)
    return means(rows, lengths, WIDTHS[steps], steps, bucket, out, shares)

"""Natural compression at memory speed: a sign and an exponent in nine bits, and sums of such: 5.1 bytes an element,
13.1 with a memory.

Four codes are 36 bits, and eight such numbers are nine words: word w joins what is left of number w - 1 and the
beginning of number w. So a thread makes a number of its four neighbouring codes, takes over what is left from the
thread before it, and a warp stores whole words one behind another.
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
from laconic.kernels.gpu.lists import Tiles, keys_of, outputs, pointers, starts, table, tiled, views
from laconic.kernels.gpu.triton_helpers import draw, finite, key_of, loaded, located, pointed, stored
from laconic.kernels.lists import listed

_TILE, _WARPS = 1024, 1
_MEAN_TILE, _MEAN_WARPS = 1024, 4


@triton.jit
def _code(x, place, low, high):
    """The sign and the exponent, raised by one where the draw is below the mantissa: what a whole number greater by
    2²³ - 1 less the draw has in its first nine bits. Neither zero's exponent nor the last two are raised."""
    pattern = x.to(tl.uint32, bitcast=True)
    up = 0x7FFFFF - (draw(place, low, high) >> 1)
    normal = (pattern & 0x7F800000) - 0x00800000 < 0x7E800000
    return (pattern + tl.where(normal, up, 0).to(tl.uint32)) >> 23


@triton.jit
def _nine(code, TILE: tl.constexpr):
    """Return eight words of nine, and the ninth, for each 32 codes."""
    k = tl.arange(0, 4)[None, :]
    fours = tl.reshape(code.to(tl.int32), [TILE // 4, 4])
    low = tl.reshape(tl.sum(fours << (9 * k), axis=1), [TILE // 32, 8]).to(tl.uint32)
    high = tl.reshape(tl.sum(tl.where(k == 3, fours >> 5, 0), axis=1), [TILE // 32, 8]).to(tl.uint32)
    w = tl.arange(0, 8)[None, :]
    left = (low >> 1 >> (31 - 4 * w)) | (high << (4 * w))  # what the word of this number has no room for
    before = tl.gather(left, tl.broadcast_to(tl.maximum(w - 1, 0), [TILE // 32, 8]), axis=1)
    words = (low << (4 * w)) | tl.where(w > 0, before, 0)
    return words, tl.sum(tl.where(w == 7, left, 0).to(tl.int32), axis=1).to(tl.uint32)


@triton.jit
def _put(out, word, at, size, WHOLE: tl.constexpr):
    """Store a word at this number of words, or as many of its bytes as the message has."""
    if WHOLE:
        tl.store(out.to(tl.pointer_type(tl.uint32)) + at, word)
    else:
        for b in tl.static_range(4):
            tl.store(out + 4 * at + b, (word >> (8 * b)).to(tl.uint8), mask=4 * at + b < size)


@triton.jit
def _power(code):
    """Return the power of two that a code stands for."""
    return (((code & 0xFF) << 23) | ((code & 0x100) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def _encode_tile(x, error, out, rest, base, low, high, TILE: tl.constexpr, FED: tl.constexpr, WHOLE: tl.constexpr,
                 MASKED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED)
    if FED:
        v += loaded(error, i, rest, MASKED)
    code = _code(v, base + i, low, high)
    if FED:
        stored(error, i, rest, finite(v - _power(code)), MASKED)
    words, ninth = _nine(code, TILE)
    group = tl.arange(0, TILE // 32)
    size = (9 * rest + 7) // 8
    _put(out, words, 9 * group[:, None] + tl.arange(0, 8)[None, :], size, WHOLE)
    _put(out, ninth, 9 * group + 8, size, WHOLE)


@triton.jit(do_not_specialize=["place_2", "keys"])
def _encode_natural(x, error, place_0, place_1, place_2, keys, message, parts_at, TILE: tl.constexpr,
                    FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    low, high = key_of(keys, number)
    out = message + base // 8 * 9
    if LISTED:
        out += tl.load(parts_at + number)
    if base + TILE <= n:
        _encode_tile(x, error, out, n - base, base, low, high, TILE, FED, WHOLE, False)
    else:
        _encode_tile(x, error, out, n - base, base, low, high, TILE, FED, False, True)


@dataclass(frozen=True)
class _Plan:
    """The layout that depends on lengths alone."""

    parts_at: Tensor  # where each tensor's part of the message begins
    size: int  # of the message
    encode_tiles: Tiles
    mean_tiles: Tiles
    whole: bool  # whether all parts begin at multiples of four bytes


@lru_cache(1024)
def _plan(lengths: tuple[int, ...], device: torch.device) -> _Plan:
    at = starts([-(-9 * n // 8) for n in lengths])
    tiles = tiled(lengths, _TILE, device), tiled(lengths, _MEAN_TILE, device)
    return _Plan(table(at[:-1], torch.int64, device), at[-1], *tiles, not any(where % 4 for where in at[:-1]))


def encode_natural(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, keys: Sequence[int]) -> Tensor:
    if not plain(*xs, *(errors or ())):
        return codes.encode_natural(reference, xs, errors, keys)
    xs, device = listed(xs), xs[0].device
    plan, (given, aligned), (memory, aligned_too) = _plan(xs.lengths, device), pointers(xs), pointers(errors or xs)
    message = torch.empty(plan.size, dtype=torch.uint8, device=device)
    _encode_natural[(plan.encode_tiles.count,)](
        given, memory, *plan.encode_tiles.place, keys_of(keys, device), message, plan.parts_at, _TILE,
        errors is not None, plan.encode_tiles.listed, aligned and aligned_too, plan.whole, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip
    return message


@triton.jit
def _decoded_row(row, i, rest, MASKED: tl.constexpr):
    """Return the value of the i-th code: nine bits in two bytes, from bit i % 8 of the first on."""
    at = row + i + (i >> 3)
    if MASKED:
        pair = tl.load(at, mask=i < rest, other=0).to(tl.uint32)
        pair |= tl.load(at + 1, mask=i < rest, other=0).to(tl.uint32) << 8
    else:
        pair = tl.load(at).to(tl.uint32) | (tl.load(at + 1).to(tl.uint32) << 8)
    return _power(pair >> (i & 7).to(tl.uint32))


@triton.jit
def _mean(rows, stride, workers, total, rest, TILE: tl.constexpr, WORKERS: tl.constexpr, SUMMED: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, TILE)
    if SUMMED:
        sums = tl.zeros([TILE], tl.float32)
        if WORKERS:
            for r in tl.static_range(WORKERS):
                sums += _decoded_row(rows + r * stride, i, rest, MASKED)
        else:
            for r in range(workers):
                sums += _decoded_row(rows + r * stride, i, rest, MASKED)
        stored(total, i, rest, averaged(sums, workers, WORKERS), MASKED)
    else:
        stored(total, i, rest, _decoded_row(rows, i, rest, MASKED), MASKED)


@triton.jit(do_not_specialize=["place_2", "workers"])
def _mean_of_natural(rows, stride, workers, parts_at, total, begins, place_0, place_1, place_2, TILE: tl.constexpr,
                     WORKERS: tl.constexpr, SUMMED: tl.constexpr, LISTED: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    rows += base // 8 * 9
    if LISTED:
        rows += tl.load(parts_at + number)
        total += tl.multiple_of(tl.load(begins + number), 4)
    total += base
    stride = tl.cast(stride, tl.int64)
    if base + TILE <= n:
        _mean(rows, stride, workers, total, n - base, TILE, WORKERS, SUMMED, False)
    else:
        _mean(rows, stride, workers, total, n - base, TILE, WORKERS, SUMMED, True)


def mean_of_natural(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    return _means(rows.contiguous(), tuple(lengths), True)


def decode_natural(packed: Tensor, count: int) -> Tensor:
    return _means(packed.contiguous().view(1, -1), (count,), False)[0]


def _means(rows: Tensor, lengths: tuple[int, ...], summed: bool) -> list[Tensor]:
    device, (workers, stride) = rows.device, rows.shape
    plan, (means, begins) = _plan(lengths, device), outputs(lengths, device)
    _mean_of_natural[(plan.mean_tiles.count,)](
        rows, stride, workers, plan.parts_at, means, begins, *plan.mean_tiles.place, _MEAN_TILE, unrolled(workers),
        summed, plan.mean_tiles.listed, num_warps=_MEAN_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return views(means, lengths)

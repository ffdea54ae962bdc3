"""The Walsh–Hadamard transform behind random signs, to the bit, in as few passes over memory as registers allow.

The first pass takes tiles of 2¹³ values that lie together through thirteen stages; each later one takes tiles of up to
2⁷ rows, each row a stretch of values 2¹³ (then 2²⁰, …) behind the last, through seven. So 2²⁷ values take three passes,
24 bytes each. Signs are turned in the first pass on the way in, or in the last on the way out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.lists import halves_of
from laconic.kernels.gpu.triton_helpers import draw
from laconic.kernels.reference.rotation import rotated_length

_STAGES, _WARPS = 13, 8  # stages and warps of the first pass
_LEAST = 1024  # values of its smallest tile
_LATER, _LATER_WARPS = 7, 4  # stages of a later pass: 2⁷ registers hold a thread's rows
_COLUMNS = 128  # of a later tile, at least
_PLAIN = ["count", "low", "high", "scale"]  # arguments whose values do not specialise the code


@triton.jit
def _across(x, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Return sums and differences of values WIDTH apart, where a pair lies in one thread or in two of a warp.

    The other of a pair is the sum of both patterns, as whole numbers, less oneself: that is one shuffle, or nothing at
    all.
    """
    pairs = tl.reshape(x, [TILE // (2 * WIDTH), 2, WIDTH])
    bits = pairs.to(tl.int32, bitcast=True)
    other = (tl.sum(bits, axis=1, keep_dims=True) - bits).to(tl.float32, bitcast=True)
    sign = tl.broadcast_to((1 - 2 * tl.arange(0, 2)).to(tl.float32)[None, :, None], pairs.shape)
    return tl.reshape(tl.fma(pairs, sign, other), [TILE])  # times ±1 is exact


@triton.jit
def _exchanged(x, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Return sums and differences where a pair lies in two warps: values move so that each thread has both."""
    one, other = tl.split(tl.permute(tl.reshape(x, [TILE // (2 * WIDTH), 2, WIDTH]), [0, 2, 1]))
    return tl.reshape(tl.permute(tl.join(one + other, one - other), [0, 2, 1]), [TILE])


@triton.jit
def stages(x, TILE: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, NEAR: tl.constexpr, FAR: tl.constexpr):
    """Apply COUNT stages, the first of values FIRST apart; those NEAR to less than FAR apart lie in different warps."""
    for k in tl.static_range(COUNT):
        if (FIRST << k) >= NEAR and (FIRST << k) < FAR:
            x = _exchanged(x, TILE, FIRST << k)
        else:
            x = _across(x, TILE, FIRST << k)
    return x


@triton.jit
def turned_by(x, place, low, high):
    """Multiply by ±1 by the draw's lowest bit: the sign bit is flipped where it is 0."""
    turn = (draw(place, low, high).to(tl.uint32) & 1 ^ 1) << 31
    return (x.to(tl.uint32, bitcast=True) ^ turn).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=_PLAIN)
def _first(x, out, count, low, high, scale, TILE: tl.constexpr, STAGES: tl.constexpr, NEAR: tl.constexpr,
           FAR: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """Transform `count` values and zeros behind them as far as they lie in one tile, which may be longer than them
    all."""
    base = tl.program_id(0).to(tl.int64) * TILE
    i = tl.arange(0, TILE)
    rest = tl.minimum(count - base, TILE).to(tl.int32)
    if rest == TILE:
        v = tl.load(x + base + i)
    else:
        v = tl.load(x + base + i, mask=i < rest, other=0.0)
    if BEFORE:
        v = turned_by(v, base + i, low, high)
    v = stages(v, TILE, 1, STAGES, NEAR, FAR)
    if LAST:
        v *= scale
    if AFTER:
        v = turned_by(v, base + i, low, high)
    if (1 << STAGES) < TILE:
        tl.store(out + i, v, mask=i < (1 << STAGES))
    else:
        tl.store(out + base + i, v)


@triton.jit(do_not_specialize=_PLAIN)
def _later(x, low, high, scale, LOG: tl.constexpr, STAGES: tl.constexpr, COLUMNS: tl.constexpr,
           AFTER: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """Transform in place: rows 2ᴸᴼᴳ apart, a thread for each column, so that no value leaves its thread."""
    ROWS: tl.constexpr = 1 << STAGES
    first = tl.program_id(0).to(tl.int64) * COLUMNS  # among the columns of all groups of rows
    base = ((first >> LOG) << (LOG + STAGES)) + (first & ((1 << LOG) - 1))
    i = (tl.arange(0, ROWS).to(tl.int64)[:, None] << LOG) + tl.arange(0, COLUMNS)[None, :]
    v = tl.reshape(tl.load(x + base + i), [ROWS * COLUMNS])
    v = tl.reshape(stages(v, ROWS * COLUMNS, COLUMNS, STAGES, 0, 0), [ROWS, COLUMNS])
    if LAST:
        v *= scale
    if AFTER:
        v = turned_by(v, base + i, low, high)
    tl.store(x + base + i, v)


def _transformed(x: Tensor, key: int | None, before: bool) -> Tensor:
    """Return the transform, with signs by the key, if there is one, before or after all stages."""
    n = rotated_length(x.numel())
    out = torch.empty(n, device=x.device)
    log, done = n.bit_length() - 1, min(_STAGES, n.bit_length() - 1)
    tile = max(_LEAST, 1 << done)
    low, high = halves_of(key or 0)
    signed, scale = key is not None, n**-0.5
    _first[(max(1, n // tile),)](
        x, out, x.numel(), low, high, scale, tile, done, 128, 128 * _WARPS, signed and before,
        signed and not before and done == log, done == log, num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    while done < log:
        stages = min(_LATER, log - done)
        columns = max(_COLUMNS, 2048 >> stages)
        last = done + stages == log
        _later[(n // (columns << stages),)](
            out, low, high, scale, done, stages, columns, signed and not before and last, last,
            num_warps=_LATER_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
        done += stages
    return out


def _suits(x: Tensor, whole: bool) -> bool:
    flat = x.dtype == torch.float32 and x.dim() == 1 and x.is_contiguous()
    return flat and (not whole or x.numel() == rotated_length(x.numel()))


def hadamard(x: Tensor) -> Tensor:
    return _transformed(x, None, False) if _suits(x, True) else reference.hadamard(x)


def rotate(x: Tensor, key: int) -> Tensor:
    return _transformed(x, key, True) if _suits(x, False) else reference.rotate(x, key)


def rotate_back(z: Tensor, key: int) -> Tensor:
    return _transformed(z, key, False) if _suits(z, True) else reference.rotate_back(z, key)

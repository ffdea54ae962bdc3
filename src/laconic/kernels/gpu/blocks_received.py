"""The mean of many workers' blocks that share a scale, decoded and added in registers.

Reads every message once and writes the mean: 4 + N·b/8 bytes an element for N workers and codes of b bits. A thread
takes eight neighbouring codes, which are of one block, as one whole number (see `means`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import block_rows, blocks, reference
from laconic.kernels.gpu.block_codes import constants, float_value, power_value
from laconic.kernels.gpu.blocks import READ, fits, layout
from laconic.kernels.gpu.eligibility import averaged, plain, unrolled
from laconic.kernels.gpu.lists import destinations, table, tiled
from laconic.kernels.gpu.means import begin_of, eights, in_order, scales_at
from laconic.kernels.gpu.triton_helpers import located, narrowed, stored
from laconic.kernels.reference.blocks import BlockFormat

_TILE = 512


@triton.jit
def _scale(scales, rest, COUNT: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
           MANTISSA: tl.constexpr, MOST: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    """Return what each eight codes are multiplied by."""
    at = tl.full([], 0, tl.int32)
    if BLOCK:
        j = tl.arange(0, COUNT) * 8
        if MASKED:
            j = tl.where(j < rest, j, 0)
        at = j // BLOCK
    if E8M0:
        return power_value(tl.load(scales + at).to(tl.int32))
    elif MANTISSA < 0:
        most = scales_at(scales + at * 4, ALIGNED)
        return tl.div_rn(most, tl.full(most.shape, MOST, tl.float32))
    else:
        return scales_at(scales + at * 4, ALIGNED)


@triton.jit
def _value(eight, k: tl.constexpr, scale, BITS: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
           MOST: tl.constexpr, LAST: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    """Return the value of the k-th of eight codes."""
    code = ((eight >> (BITS * k)) & ((1 << BITS) - 1)).to(tl.int32)
    if MANTISSA < 0:
        return ((code << (32 - BITS)) >> (32 - BITS)).to(tl.float32) * scale
    else:
        value = float_value(code, BITS, MANTISSA, BIAS, LAST)
        if not E8M0:
            value = value * (1 / MOST)
        return value * scale


@triton.jit
def _values(row, scales, rest, COUNT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr, ALIGNED: tl.constexpr,
            MASKED: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr, LAST: tl.constexpr,
            E8M0: tl.constexpr):  # fmt: skip
    """Return one worker's values, each eighth of them in a tensor of their own."""
    eight = eights(row, (rest * BITS + 7) // 8, COUNT, BITS, ALIGNED, MASKED)
    scale = _scale(scales, rest, COUNT, BLOCK, ALIGNED, MASKED, MANTISSA, MOST, E8M0)
    return (_value(eight, 0, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 1, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 2, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 3, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 4, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 5, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 6, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0),
            _value(eight, 7, scale, BITS, MANTISSA, BIAS, MOST, LAST, E8M0))  # fmt: skip


@triton.jit
def _sums(totals, found):
    t0, t1, t2, t3, t4, t5, t6, t7 = totals
    v0, v1, v2, v3, v4, v5, v6, v7 = found
    return t0 + v0, t1 + v1, t2 + v2, t3 + v3, t4 + v4, t5 + v5, t6 + v6, t7 + v7


@triton.jit
def _mean(rows, stride, workers, scales, total, share, rest, TILE: tl.constexpr, BLOCK: tl.constexpr,
          BITS: tl.constexpr, WORKERS: tl.constexpr, ALIGNED: tl.constexpr, SHARED: tl.constexpr, MASKED: tl.constexpr,
          MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr, LAST: tl.constexpr,
          E8M0: tl.constexpr):  # fmt: skip
    COUNT: tl.constexpr = TILE // 8
    if WORKERS == 1:
        totals = _values(rows, scales, rest, COUNT, BLOCK, BITS, ALIGNED, MASKED, MANTISSA, BIAS, MOST, LAST, E8M0)
    else:
        zero = tl.zeros([COUNT], tl.float32)
        totals = (zero, zero, zero, zero, zero, zero, zero, zero)
        if WORKERS:
            for r in tl.static_range(WORKERS):
                at = r * stride.to(tl.int64)
                totals = _sums(totals, _values(rows + at, scales + at, rest, COUNT, BLOCK, BITS, ALIGNED, MASKED,
                                               MANTISSA, BIAS, MOST, LAST, E8M0))  # fmt: skip
        else:
            for r in range(workers):
                at = r * stride.to(tl.int64)
                totals = _sums(totals, _values(rows + at, scales + at, rest, COUNT, BLOCK, BITS, ALIGNED, MASKED,
                                               MANTISSA, BIAS, MOST, LAST, E8M0))  # fmt: skip
    means = averaged(in_order(totals, TILE), workers, WORKERS)
    if SHARED:
        means = means * share
    stored(total, tl.arange(0, TILE), rest, narrowed(means, total), MASKED)


@triton.jit
def _means(rows, stride, workers, codes_at, total, begins, shares, place_0, place_1, place_2, TILE: tl.constexpr,
           BLOCK: tl.constexpr, BITS: tl.constexpr, WORKERS: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr,
           EVEN: tl.constexpr, SHARED: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr,
           LAST: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    if LISTED:
        rows += tl.load(codes_at + number)
        total += begin_of(begins, number, EVEN)
    share = 1.0
    if SHARED:
        share = tl.load(shares + number)
    scales = rows + (n * BITS + 7) // 8
    if BLOCK:
        scales += base // BLOCK * (1 if E8M0 else 4)
    rows += base // 8 * BITS
    total += base
    if base + TILE <= n:
        _mean(rows, stride, workers, scales, total, share, n - base, TILE, BLOCK, BITS, WORKERS, ALIGNED, SHARED, False,
              MANTISSA, BIAS, MOST, LAST, E8M0)  # fmt: skip
    else:
        _mean(rows, stride, workers, scales, total, share, n - base, TILE, BLOCK, BITS, WORKERS, ALIGNED, SHARED, True,
              MANTISSA, BIAS, MOST, LAST, E8M0)  # fmt: skip


def mean_of_blocks(
    rows: Tensor,
    lengths: Sequence[int],
    how: BlockFormat,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    if not fits(how) or not rows.is_contiguous() or not plain(*(out or ())):
        return blocks.mean_of_blocks(reference, rows, lengths, how, out, shares)
    device, lengths, tile = rows.device, tuple(lengths), max(_TILE, how.block)
    tiles, (at, _, unit) = tiled(lengths, tile, device), layout(lengths, how, device)
    workers, stride = rows.shape
    unit = min(unit, *(8 if where % 8 == 0 else 4 if where % 4 == 0 else 1 for where in (stride, rows.data_ptr())))
    aligned = 0 if unit == 1 else min(unit, how.width)
    room, begins, fours, found = destinations(lengths, out, device)
    if not tiles.count:
        return found
    form = {name: value for name, value in constants(how).items() if name not in ("TOP", "POWER")}
    _means[(tiles.count,)](
        rows, stride, workers, at, room, begins, at if shares is None else table(tuple(shares), torch.float32, device),
        *tiles.place, tile, how.block, how.width, unrolled(workers), tiles.listed, aligned, fours, shares is not None,
        **form, num_warps=-(-tile // 1024), enable_fp_fusion=False,
    )  # fmt: skip
    return found


@triton.jit
def _rows_decoded(messages, size, out, n, TILE: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
                  ALIGNED: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr,
                  LAST: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    """Write the values of a row's message, in the type of `out`."""
    row, base = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * TILE
    at = row * size
    if ALIGNED:
        at = tl.multiple_of(at, 8 if ALIGNED == 8 else 4)
    n = tl.full([], 0, tl.int64) + n
    codes = messages + at
    scales = codes + (n * BITS + 7) // 8 + base // BLOCK * (1 if E8M0 else 4)
    codes += base // 8 * BITS
    out += row * n + base
    if base + TILE <= n:
        _mean(codes, size, 1, scales, out, 1.0, n - base, TILE, BLOCK, BITS, 1, ALIGNED, False, False, MANTISSA, BIAS,
              MOST, LAST, E8M0)  # fmt: skip
    else:
        _mean(codes, size, 1, scales, out, 1.0, n - base, TILE, BLOCK, BITS, 1, ALIGNED, False, True, MANTISSA, BIAS,
              MOST, LAST, E8M0)  # fmt: skip


def decode_block_rows(messages: Tensor, out: Tensor, how: BlockFormat) -> None:
    rows, n = out.shape
    contiguous = messages.is_contiguous() and out.is_contiguous()
    if not fits(how) or not how.block or not contiguous or out.dtype not in READ:
        block_rows.decode_block_rows(reference, messages, out, how)
        return
    if not out.numel():
        return
    size, tile = how.message_bytes(n), max(_TILE, how.block)
    places = (size, how.code_bytes(n), messages.data_ptr())
    unit = min(8 if where % 8 == 0 else 4 if where % 4 == 0 else 0 for where in places)
    form = {name: value for name, value in constants(how).items() if name not in ("TOP", "POWER")}
    _rows_decoded[(-(-n // tile), rows)](
        messages, size, out, n, tile, how.block, how.width, min(unit, how.width), **form, num_warps=-(-tile // 1024),
        enable_fp_fusion=False,
    )  # fmt: skip

"""The mean of many workers' messages without materialising any of their tensors: codes are decoded and added in
registers.

Reads every message once and writes the mean: 4 + N·b/8 bytes an element for N workers and codes of b bits. A thread
takes eight neighbouring codes as one whole number of 8·b bits and keeps a sum for each, so that nothing changes place
between threads before the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import messages, reference
from laconic.kernels.gpu.eligibility import averaged, plain, unrolled
from laconic.kernels.gpu.lists import Tiles, destinations, starts, table, tiled
from laconic.kernels.gpu.triton_helpers import INTERPRETED, located, number_at, stored

_TILES = {1: 1024, 2: 2048, 4: 512, 8: 512}  # by the width of codes: the fastest ones measured
MAGIC = tl.constexpr(1.5 * 2**23)
MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def eights(pointer, rest, COUNT: tl.constexpr, BITS: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr):
    """Load eight codes each, as whole numbers, with zeros from byte `rest` on. `ALIGNED` is whether they begin at a
    multiple of their size, or 4 where codes of eight bits begin at a multiple of four bytes."""
    kind: tl.constexpr = tl.uint8 if BITS == 1 else tl.uint16 if BITS == 2 else tl.uint32 if BITS == 4 else tl.uint64
    j = tl.arange(0, COUNT)
    if (BITS == 8 and ALIGNED == 4) and not MASKED:
        word = pointer.to(tl.pointer_type(tl.uint32)) + 2 * j
        eight = tl.load(word).to(kind) | (tl.load(word + 1).to(kind) << 32)
    elif ALIGNED and not MASKED:
        eight = tl.load(pointer.to(tl.pointer_type(kind)) + j)
    else:
        eight = tl.zeros([COUNT], kind)
        for k in tl.static_range(BITS):
            byte = tl.load(pointer + BITS * j + k, mask=BITS * j + k < rest, other=0)
            eight |= byte.to(kind) << (8 * k)
    return eight if BITS == 8 else eight.to(tl.uint32)


@triton.jit
def scales_at(pointer, ALIGNED: tl.constexpr):
    """Return the float32 in four bytes, wherever they begin."""
    if ALIGNED:
        return tl.load(pointer.to(tl.pointer_type(tl.float32)))
    else:
        return number_at(pointer)


@triton.jit
def _counted(part, byte: tl.constexpr):
    """Return MAGIC plus the number in this byte, as a float: on a GPU one instruction that puts four bytes together."""
    if INTERPRETED:
        return (((part >> (8 * byte)) & 255) | MAGIC_BITS).to(tl.float32, bitcast=True)
    else:
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [part, tl.full([], MAGIC_BITS, tl.uint32), tl.full([], 0x7650 + byte, tl.uint32)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def _said(eight, k: tl.constexpr, scale, BITS: tl.constexpr, STEPS: tl.constexpr):
    """Return the value of the k-th of eight codes. Signs flip the scale's own sign bit; levels become floats without a
    conversion, in the lowest bits of a number whose neighbours differ by one."""
    if BITS == 1:
        return ((eight << (31 - k) & 0x80000000) ^ scale).to(tl.float32, bitcast=True)
    elif BITS == 8:
        half = (eight >> 32).to(tl.uint32) if k >= 4 else eight.to(tl.uint32)
        return (_counted(half, k % 4) - (MAGIC + STEPS)) * scale
    else:
        EACH: tl.constexpr = 8 // BITS
        part = (eight >> (BITS * (k % EACH))) & (((1 << BITS) - 1) * 0x01010101)
        return (_counted(part, k // EACH) - (MAGIC + STEPS)) * scale


@triton.jit
def _add(totals, row, scales, rest, COUNT: tl.constexpr, BUCKET: tl.constexpr, BITS: tl.constexpr, STEPS: tl.constexpr,
         ALIGNED: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Add one worker's values to each of the eight sums."""
    eight = eights(row, (rest * BITS + 7) // 8, COUNT, BITS, ALIGNED, MASKED)
    if BITS == 1:
        scale = (-scales_at(scales, ALIGNED)).to(tl.uint32, bitcast=True)
    else:
        j = tl.arange(0, COUNT) * 8
        if MASKED:
            j = tl.where(j < rest, j, 0)
        scale = scales_at(scales + j // BUCKET * 4, ALIGNED) * (1 / STEPS)
    t0, t1, t2, t3, t4, t5, t6, t7 = totals
    t0 += _said(eight, 0, scale, BITS, STEPS)
    t1 += _said(eight, 1, scale, BITS, STEPS)
    t2 += _said(eight, 2, scale, BITS, STEPS)
    t3 += _said(eight, 3, scale, BITS, STEPS)
    t4 += _said(eight, 4, scale, BITS, STEPS)
    t5 += _said(eight, 5, scale, BITS, STEPS)
    t6 += _said(eight, 6, scale, BITS, STEPS)
    t7 += _said(eight, 7, scale, BITS, STEPS)
    return t0, t1, t2, t3, t4, t5, t6, t7


@triton.jit
def in_order(eight, TILE: tl.constexpr):
    """Return the tile whose elements k, k + 8, k + 16, … the k-th of eight tensors has."""
    t0, t1, t2, t3, t4, t5, t6, t7 = eight
    even, odd = tl.join(tl.join(t0, t4), tl.join(t2, t6)), tl.join(tl.join(t1, t5), tl.join(t3, t7))
    return tl.reshape(tl.join(even, odd), [TILE])


@triton.jit
def _mean(rows, stride, workers, scales, total, share, rest, TILE: tl.constexpr, BUCKET: tl.constexpr,
          BITS: tl.constexpr, STEPS: tl.constexpr, WORKERS: tl.constexpr, ALIGNED: tl.constexpr, SHARED: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    COUNT: tl.constexpr = TILE // 8
    zero = tl.zeros([COUNT], tl.float32)
    totals = (zero, zero, zero, zero, zero, zero, zero, zero)
    if WORKERS:
        for r in tl.static_range(WORKERS):
            at = r * stride.to(tl.int64)
            totals = _add(totals, rows + at, scales + at, rest, COUNT, BUCKET, BITS, STEPS, ALIGNED, MASKED)
    else:
        for r in range(workers):
            at = r * stride.to(tl.int64)
            totals = _add(totals, rows + at, scales + at, rest, COUNT, BUCKET, BITS, STEPS, ALIGNED, MASKED)
    means = averaged(in_order(totals, TILE), workers, WORKERS)
    if SHARED:
        means = means * share
    stored(total, tl.arange(0, TILE), rest, means, MASKED)


@triton.jit
def begin_of(begins, number, EVEN: tl.constexpr):
    """Return where a tensor's mean begins, behind the first one's."""
    begin = tl.load(begins + number)
    return tl.multiple_of(begin, 4) if EVEN else begin


@triton.jit
def _means(rows, stride, workers, codes_at, total, begins, shares, place_0, place_1, place_2, TILE: tl.constexpr,
           BUCKET: tl.constexpr, BITS: tl.constexpr, STEPS: tl.constexpr, WORKERS: tl.constexpr, LISTED: tl.constexpr,
           ALIGNED: tl.constexpr, EVEN: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    if LISTED:
        rows += tl.load(codes_at + number)
        total += begin_of(begins, number, EVEN)
    share = 1.0
    if SHARED:
        share = tl.load(shares + number)
    scales = rows + (n * BITS + 7) // 8
    if BUCKET:
        scales += base // BUCKET * 4
    rows += base // 8 * BITS
    total += base
    if base + TILE <= n:
        _mean(rows, stride, workers, scales, total, share, n - base, TILE, BUCKET, BITS, STEPS, WORKERS, ALIGNED,
              SHARED, False)  # fmt: skip
    else:
        _mean(rows, stride, workers, scales, total, share, n - base, TILE, BUCKET, BITS, STEPS, WORKERS, ALIGNED,
              SHARED, True)  # fmt: skip


@lru_cache(1024)
def _plan(
    lengths: tuple[int, ...], bits: int, bucket: int, device: torch.device
) -> tuple[Tiles, Tensor, tuple[int, ...], bool]:
    """Return the tiles, where each tensor's part of a message begins, as a table and as numbers, and whether scales
    begin at multiples of four."""
    codes = [-(-n * bits // 8) for n in lengths]
    at = starts([c + 4 * (-(-n // bucket) if bucket else 1) for c, n in zip(codes, lengths, strict=True)])
    tiles = tiled(lengths, max(_TILES[bits], bucket), device)
    return tiles, table(at[:-1], torch.int64, device), at[:-1], not any(c % 4 for c in codes)


def means(
    rows: Tensor,
    lengths: Sequence[int],
    bits: int,
    steps: int,
    bucket: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
) -> list[Tensor]:
    """Return the means of tensors from messages with codes of so many bits and a scale for each bucket.

    With bucket 0 there is a scale for each tensor, and codes are signs.
    """
    device, lengths = rows.device, tuple(lengths)
    tiles, at, begins, even = _plan(lengths, bits, bucket, device)
    workers, stride = rows.shape
    unit = max(4, bits)
    aligned = even and not any(where % unit for where in (*begins, stride, rows.data_ptr()))
    room, places, fours, found = destinations(lengths, out, device)
    if not tiles.count:
        return found
    _means[(tiles.count,)](
        rows, stride, workers, at, room, places, at if shares is None else table(tuple(shares), torch.float32, device),
        *tiles.place, max(_TILES[bits], bucket), bucket, bits, steps, unrolled(workers), tiles.listed, aligned, fours,
        shares is not None, num_warps=-(-max(_TILES[bits], bucket) // 1024), enable_fp_fusion=False,
    )  # fmt: skip
    return found


def mean_of_signs(rows: Tensor, lengths: Sequence[int], out: Sequence[Tensor] | None = None) -> list[Tensor]:
    if not rows.is_contiguous() or not plain(*(out or ())):
        return messages.mean_of_signs(reference, rows, lengths, out)
    return means(rows, lengths, 1, 1, 0, out)

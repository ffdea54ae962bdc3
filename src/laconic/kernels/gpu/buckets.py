"""Levels of one tensor in buckets of any length, where lists have no body: largest magnitudes, codes and sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.levels import rounded
from laconic.kernels.gpu.lists import halves_of

_TILE, _WARPS = 1024, 4
_MOST = 4096  # elements of a bucket that one program reads


@triton.jit
def _largest(x, n, bucket, found, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * bucket
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    v = tl.load(x + first + i, mask=(i < bucket) & (first + i < n), other=0.0)
    pattern = v.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # in whose order what is no number is above all numbers
    tl.atomic_max(found + tl.program_id(0), tl.max(pattern, axis=0), sem="relaxed")


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    if norm != "max" or not plain(x) or x.ndim != 1 or not x.numel():
        return reference.bucket_scales(x, bucket, norm)
    bucket = min(bucket, x.numel())
    tile, buckets = min(_MOST, triton.next_power_of_2(bucket)), -(-x.numel() // bucket)
    found = torch.zeros(buckets, dtype=torch.int32, device=x.device)
    _largest[(buckets, -(-bucket // tile))](x, x.numel(), bucket, found, tile, num_warps=max(1, tile // 1024))
    return found.view(torch.float32)


@triton.jit(do_not_specialize=["low", "high"])
def _quantize(x, n, scales, bucket, low, high, codes, STEPS: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    v = tl.load(x + i, mask=i < n, other=0.0)
    scale = tl.load(scales + i // bucket, mask=i < n, other=0.0)
    factor = tl.where(scale > 0, tl.div_rn(tl.full([TILE], STEPS, tl.float32), scale), 0.0)
    level = rounded(tl.abs(v) * factor, i, low, high, STEPS)
    tl.store(codes + i, (tl.where(v < 0, -level, level) + STEPS).to(tl.int32).to(tl.uint8), mask=i < n)


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    if not plain(x, scales) or not x.numel():
        return reference.quantize(x, scales, bucket, steps, key)
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    _quantize[(-(-x.numel() // _TILE),)](
        x, x.numel(), scales, bucket, *halves_of(key), codes, steps, _TILE, num_warps=_WARPS, enable_fp_fusion=False
    )
    return codes


@triton.jit
def _add_levels(total, n, codes, scales, bucket, STEPS: tl.constexpr, EACH: tl.constexpr, TILE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    code = tl.load(codes + i // EACH, mask=i < n, other=0).to(tl.int32)
    if EACH == 2:
        code = (code >> ((i & 1) * 4).to(tl.int32)) & 15
    scale = tl.load(scales + i // bucket, mask=i < n, other=0.0) * (1 / STEPS)
    before = tl.load(total + i, mask=i < n, other=0.0)
    tl.store(total + i, before + (code - STEPS).to(tl.float32) * scale, mask=i < n)


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    if not plain(total, scales) or codes.dtype != torch.uint8 or not codes.is_contiguous() or not total.numel():
        reference.add_levels(total, codes, scales, bucket, steps)
        return
    _added(total, codes, scales, bucket, steps, 1)


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    if not plain(total, scales) or not packed.is_contiguous() or not total.numel():
        reference.add_levels_of_nibbles(total, packed, scales, bucket, steps)
        return
    _added(total, packed, scales, bucket, steps, 2)


def _added(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int, each: int) -> None:
    _add_levels[(-(-total.numel() // _TILE),)](
        total, total.numel(), codes, scales, bucket, steps, each, _TILE, num_warps=_WARPS, enable_fp_fusion=False
    )

"""Numba's bodies, with the signatures of `reference`, which is called where an input does not suit one."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.cpu import casts, loops
from laconic.kernels.cpu.blocks import encode_blocks, mean_of_blocks
from laconic.kernels.cpu.loops import run
from laconic.kernels.cpu.natural import decode_natural, encode_natural, mean_of_natural
from laconic.kernels.cpu.rotation import hadamard_blocks
from laconic.kernels.cpu.whole import (
    average_places,
    encode_largest,
    encode_levels,
    encode_sampled,
    encode_signs,
    mean_of_levels,
    mean_of_signs,
)
from laconic.kernels.draws import halves
from laconic.kernels.sums import BLOCK, rows_summed

_LEAST = 4096  # elements below which calling a compiled body does not pay
_FEW = 32  # the same limit where the reference takes many operations


def _suits(*tensors: Tensor) -> bool:
    return tensors[0].numel() >= _LEAST and all(x.dtype == torch.float32 and x.is_contiguous() for x in tensors)


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    if not _suits(x) or (norm != "max" and bucket % BLOCK and bucket < x.numel()):
        return reference.bucket_scales(x, bucket, norm)
    if norm == "max":
        scales = torch.empty(-(-x.numel() // bucket))
        run(loops.bucket_maxima, x.numel(), bucket, x.view(torch.int32), bucket, scales.view(torch.int32))
        return scales
    sums = torch.empty(-(-x.numel() // BLOCK))
    run(loops.block_sums, x.numel(), BLOCK, x, 1 if norm == "l1" else 2, sums)
    return rows_summed(reference.in_buckets(sums, -(-bucket // BLOCK)))


def pack_signs(x: Tensor) -> Tensor:
    if not _suits(x):
        return reference.pack_signs(x)
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8)
    run(loops.pack_signs, x.numel(), 8, x, bits)
    return bits


def add_signs(total: Tensor, packed: Tensor, scale: Tensor) -> None:
    if _suits(total):
        run(loops.add_signs, total.numel(), 8, packed.contiguous(), scale, total)
    else:
        reference.add_signs(total, packed, scale)


def feed_signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    if not _suits(x, error):
        return reference.feed_signs(x, error)
    sums = torch.empty(-(-x.numel() // BLOCK))
    run(loops.add_and_sum, x.numel(), BLOCK, x, error, sums)
    scale = rows_summed(sums) / x.numel()
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8)
    run(loops.pack_and_keep, x.numel(), 8, error, scale, bits)
    return bits, scale


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    if not _suits(x, scales):
        return reference.quantize(x, scales, bucket, steps, key)
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    run(loops.levels, x.numel(), bucket, x, scales, bucket, steps, *map(np.uint32, halves(key)), codes)
    return codes


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    if not _suits(x, scales) or bucket % 2:
        return reference.quantize_in_nibbles(x, scales, bucket, steps, key)
    packed = torch.empty(-(-x.numel() // 2), dtype=torch.uint8)
    halved = map(np.uint32, halves(key))
    run(loops.levels_in_nibbles, x.numel(), bucket, x, scales, bucket, steps, *halved, packed)
    return packed


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    if _suits(total, scales) and codes.is_contiguous():
        run(loops.add_levels, total.numel(), bucket, codes, codes[:0], scales, bucket, steps, total)
    else:
        reference.add_levels(total, codes, scales, bucket, steps)


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    if _suits(total, scales) and bucket % 2 == 0 and packed.is_contiguous():
        run(loops.add_levels, total.numel(), bucket, packed[:0], packed, scales, bucket, steps, total)
    else:
        reference.add_levels_of_nibbles(total, packed, scales, bucket, steps)


def shorten(x: Tensor, divisor: int, out: Tensor) -> None:
    if _suits(x) and out.dtype == torch.float16 and casts.converts_fp16():
        run(casts.to_fp16, x.numel(), 1, x, divisor, out.view(torch.uint16))
    elif _suits(x) and out.dtype == torch.bfloat16:
        run(casts.to_bf16, x.numel(), 1, x, divisor, out.view(torch.uint16))
    else:
        reference.shorten(x, divisor, out)


def lengthen(short: Tensor, out: Tensor) -> None:
    if _suits(out) and short.is_contiguous() and short.dtype == torch.float16 and casts.converts_fp16():
        run(casts.from_fp16, out.numel(), 1, short.view(torch.uint16), out)
    elif _suits(out) and short.is_contiguous() and short.dtype == torch.bfloat16:
        run(casts.from_bf16, out.numel(), 1, short.view(torch.uint16), out.view(torch.uint32))
    else:
        reference.lengthen(short, out)


largest, mean_of_sparse = reference.largest, reference.mean_of_sparse
sampled_limit = reference.sampled_limit


def select(x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    return loops.selected(x, threshold) if _suits(x) else reference.select(x, threshold)


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    if codes.numel() < _FEW or not codes.is_contiguous():
        return reference.pack_numbers(codes, bits)
    packed = torch.empty(-(-codes.numel() * bits // 8), dtype=torch.uint8)
    run(loops.pack_numbers, codes.numel(), 8, codes, bits, packed)
    return packed


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    if count < _FEW or not packed.is_contiguous():
        return reference.unpack_numbers(packed, bits, count)
    codes = torch.empty(count, dtype=torch.int64)
    run(loops.unpack_numbers, count, 8, packed, bits, codes)
    return codes


__all__ = [
    "add_levels",
    "add_levels_of_nibbles",
    "add_signs",
    "average_places",
    "bucket_scales",
    "decode_natural",
    "encode_blocks",
    "encode_largest",
    "encode_levels",
    "encode_natural",
    "encode_sampled",
    "encode_signs",
    "feed_signs",
    "hadamard_blocks",
    "lengthen",
    "mean_of_blocks",
    "mean_of_levels",
    "mean_of_natural",
    "mean_of_signs",
    "pack_numbers",
    "pack_signs",
    "quantize",
    "quantize_in_nibbles",
    "select",
    "shorten",
    "unpack_numbers",
]

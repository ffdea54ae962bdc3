"""The hot loops of compression: one definition each (`reference`), and faster bodies that give the same bits.

On CPUs with Numba installed, contiguous float32 tensors take the compiled bodies of `cpu`; everything else is plain
torch. Nothing here knows of compressors.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.draws import halves, integers, uniform
from laconic.kernels.sums import BLOCK, rows_summed

__all__ = [
    "add_levels",
    "add_levels_of_nibbles",
    "add_signs",
    "bucket_scales",
    "feed_signs",
    "integers",
    "pack_numbers",
    "pack_signs",
    "quantize",
    "quantize_in_nibbles",
    "rows_summed",
    "select",
    "uniform",
    "unpack_numbers",
]

_LEAST = 4096  # elements below which calling a compiled body does not pay
_FEW = 32  # the same where the reference takes many operations


@cache
def _cpu() -> Any:
    try:
        from laconic.kernels import cpu
    except ImportError:
        return None
    return cpu


def _body(*tensors: Tensor) -> Any:
    """The compiled bodies, if these tensors can take them."""
    single = all(t.dtype == torch.float32 for t in tensors)
    return _fitting(tensors[0].numel(), *tensors) if single else None


def _fitting(count: int, *tensors: Tensor, least: int = _LEAST) -> Any:
    fits = all(t.device.type == "cpu" and t.is_contiguous() for t in tensors)
    return _cpu() if fits and count >= least else None


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    body = _body(x)
    if body is None or (norm != "max" and bucket % BLOCK and bucket < x.numel()):
        return reference.bucket_scales(x, bucket, norm)
    if norm == "max":
        scales = torch.empty(-(-x.numel() // bucket))
        body.run(body.bucket_maxima, x.numel(), bucket, x.view(torch.int32), bucket, scales.view(torch.int32))
        return scales
    sums = torch.empty(-(-x.numel() // BLOCK))
    body.run(body.block_sums, x.numel(), BLOCK, x, 1 if norm == "l1" else 2, sums)
    return rows_summed(reference.in_buckets(sums, -(-bucket // BLOCK)))


def pack_signs(x: Tensor) -> Tensor:
    body = _body(x)
    if body is None:
        return reference.pack_signs(x)
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8)
    body.run(body.pack_signs, x.numel(), 8, x, bits)
    return bits


def add_signs(total: Tensor, bits: Tensor, scale: Tensor) -> None:
    body = _body(total)
    if body is None:
        reference.add_signs(total, bits, scale)
    else:
        body.run(body.add_signs, total.numel(), 8, bits.contiguous(), scale, total)


def feed_signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    body = _body(x, error)
    if body is None:
        return reference.feed_signs(x, error)
    sums = torch.empty(-(-x.numel() // BLOCK))
    body.run(body.add_and_sum, x.numel(), BLOCK, x, error, sums)
    scale = rows_summed(sums) / x.numel()
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8)
    body.run(body.pack_and_keep, x.numel(), 8, error, scale, bits)
    return bits, scale


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    body = _body(x, scales)
    if body is None:
        return reference.quantize(x, scales, bucket, steps, key)
    codes = torch.empty(x.numel(), dtype=torch.uint8)
    body.run(body.levels, x.numel(), bucket, x, scales, bucket, steps, *map(np.uint32, halves(key)), codes)
    return codes


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    body = _body(x, scales)
    if body is None or bucket % 2:
        return reference.quantize_in_nibbles(x, scales, bucket, steps, key)
    packed = torch.empty(-(-x.numel() // 2), dtype=torch.uint8)
    halved = map(np.uint32, halves(key))
    body.run(body.levels_in_nibbles, x.numel(), bucket, x, scales, bucket, steps, *halved, packed)
    return packed


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    body = _body(total, scales)
    if body is None or not codes.is_contiguous():
        reference.add_levels(total, codes, scales, bucket, steps)
    else:
        body.run(body.add_levels, total.numel(), bucket, codes, codes[:0], scales, bucket, steps, total)


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    body = _body(total, scales)
    if body is None or bucket % 2 or not packed.is_contiguous():
        reference.add_levels_of_nibbles(total, packed, scales, bucket, steps)
    else:
        body.run(body.add_levels, total.numel(), bucket, packed[:0], packed, scales, bucket, steps, total)


def select(x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    body = _body(x)
    return reference.select(x, threshold) if body is None else body.selected(x, threshold)


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    body = _fitting(codes.numel(), codes, least=_FEW)
    if body is None:
        return reference.pack_numbers(codes, bits)
    packed = torch.empty(-(-codes.numel() * bits // 8), dtype=torch.uint8)
    body.run(body.pack_numbers, codes.numel(), 8, codes, bits, packed)
    return packed


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    body = _fitting(count, packed, least=_FEW)
    if body is None:
        return reference.unpack_numbers(packed, bits, count)
    codes = torch.empty(count, dtype=torch.int64)
    body.run(body.unpack_numbers, count, 8, packed, bits, codes)
    return codes


for _name in __all__:
    if _name not in ("integers", "rows_summed", "uniform"):
        globals()[_name].__doc__ = getattr(reference, _name).__doc__

"""TernGrad's digits at memory speed: rounding to -1, 0 or 1 and two bits each, 4.3 bytes an element, and sums of them.

Digits of many workers are added where they lie: a byte's four digits become four bytes of a word, and words are added.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import codes, reference
from laconic.kernels.gpu.eligibility import plain, unrolled
from laconic.kernels.gpu.levels import rounded
from laconic.kernels.gpu.lists import keys_of
from laconic.kernels.gpu.means import MAGIC
from laconic.kernels.gpu.triton_helpers import key_of, loaded, packed, stored
from laconic.kernels.reference.ternaries import MOST

_TILE, _WARPS = 4096, 4
_BYTES, _BYTES_WARPS = 1024, 4  # of each row, four digits each


@triton.jit
def _encode(x, out, rest, room, base, factor, low, high, TILE: tl.constexpr, MASKED: tl.constexpr):
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED)
    level = rounded(tl.abs(v) * factor, base + i, low, high, 1)
    digit = (tl.where(v < 0, -level, level) + (MAGIC + 1)).to(tl.int32, bitcast=True) & 3  # without a conversion
    if MASKED:
        digit = tl.where(i < rest, digit, 0)
    stored(out, tl.arange(0, TILE // 4), room // 4, packed(digit, TILE, 4), MASKED)


@triton.jit(do_not_specialize=["keys", "n", "room"])
def _encode_ternaries(x, scale, keys, n, room, out, TILE: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * TILE
    scale = tl.load(scale)
    low, high = key_of(keys, 0)
    factor = tl.where(scale > 0, tl.div_rn(tl.full([], 1.0, tl.float32), scale), 0.0)
    x, out, rest = x + base, out + base // 4, n - base
    if rest >= TILE:
        _encode(x, out, rest, room - base, base, factor, low, high, TILE, False)
    else:
        _encode(x, out, rest, room - base, base, factor, low, high, TILE, True)


def encode_ternaries(x: Tensor, scale: Tensor, key: int, room: int) -> Tensor:
    if not plain(x, scale):
        return codes.encode_ternaries(reference, x, scale, key, room)
    out = torch.empty(room // 4, dtype=torch.uint8, device=x.device)
    _encode_ternaries[(triton.cdiv(room, _TILE),)](
        x, scale, keys_of([key], x.device), x.numel(), room, out, _TILE, num_warps=_WARPS, enable_fp_fusion=False
    )
    return out


@triton.jit
def _spread(row, j, rest, MASKED: tl.constexpr):
    """Each byte's four digits, as the four bytes of a word."""
    if MASKED:
        byte = tl.load(row + j, mask=j < rest, other=0).to(tl.int32)
    else:
        byte = tl.load(row + j).to(tl.int32)
    pairs = (byte | (byte << 12)) & 0x000F000F
    return (pairs | (pairs << 6)) & 0x03030303


@triton.jit
def _summed(rows, stride, workers, rest, out, BYTES: tl.constexpr, WORKERS: tl.constexpr, MASKED: tl.constexpr):
    j = tl.arange(0, BYTES)
    total = tl.zeros([BYTES], tl.int32)
    if WORKERS:
        for r in tl.static_range(WORKERS):
            total += _spread(rows + r * stride, j, rest, MASKED)
    else:
        for r in range(workers):
            total += _spread(rows + r * stride, j, rest, MASKED)
    stored(out, j, rest, total, MASKED)


@triton.jit(do_not_specialize=["workers", "size"])
def _sum_of_digits(rows, stride, workers, size, out, BYTES: tl.constexpr, WORKERS: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * BYTES
    rows, out, rest, stride = rows + base, out + base, size - base, tl.cast(stride, tl.int64)
    if rest >= BYTES:
        _summed(rows, stride, workers, rest, out, BYTES, WORKERS, False)
    else:
        _summed(rows, stride, workers, rest, out, BYTES, WORKERS, True)


def sum_of_digits(rows: Tensor, count: int) -> Tensor:
    workers, size = len(rows), -(-count // 4)
    if workers > MOST:
        return reference.sum_of_digits(rows, count)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = torch.empty(size, dtype=torch.int32, device=rows.device)
    _sum_of_digits[(triton.cdiv(size, _BYTES),)](
        rows, rows.stride(0), workers, size, out, _BYTES, unrolled(workers),
        num_warps=_BYTES_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return out.view(torch.uint8)[:count]


@triton.jit(do_not_specialize=["count"])
def _ternaries_of(packed, scale, count, out, TILE: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * TILE
    packed, out, rest, scale = packed + base // 4, out + base, count - base, tl.load(scale)
    if rest >= TILE:
        _say(packed, scale, rest, out, TILE, False)
    else:
        _say(packed, scale, rest, out, TILE, True)


@triton.jit
def _say(packed, scale, rest, out, TILE: tl.constexpr, MASKED: tl.constexpr):
    j = tl.arange(0, TILE // 4)
    if MASKED:
        byte = tl.load(packed + j, mask=4 * j < rest, other=0).to(tl.int32)
    else:
        byte = tl.load(packed + j).to(tl.int32)
    digit = (byte[:, None] >> (2 * tl.arange(0, 4))[None, :]) & 3
    decoded = tl.reshape((digit - 1).to(tl.float32) * scale, [TILE])
    stored(out, tl.arange(0, TILE), rest, decoded, MASKED)


def ternaries_of(packed: Tensor, scale: Tensor, count: int) -> Tensor:
    out = torch.empty(count, device=packed.device)
    _ternaries_of[(triton.cdiv(count, _TILE),)](
        packed.contiguous(), scale, count, out, _TILE, num_warps=_WARPS, enable_fp_fusion=False
    )
    return out

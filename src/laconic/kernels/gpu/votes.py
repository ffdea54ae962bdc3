"""Signs without a scale: values to bits, majorities of packed bits without unpacking them, and bits as ±1.

Counters lie across words: plane k holds bit k of 32 elements' counts, and adding a worker's word is a carry that runs
through the planes, two operations each. A count is compared with half of the workers from the lowest plane up. So 32
elements take about a hundred operations for eight workers, and (N + 1)/8 bytes of memory an element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.eligibility import plain, unrolled
from laconic.kernels.gpu.triton_helpers import loaded, packed, stored

_WORDS, _WARPS = 256, 8
_PLANES = 8
_TILE, _TILE_WARPS = 4096, 4


@triton.jit(do_not_specialize=["n"])
def _pack_signs(x, n, bits, TILE: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * TILE
    i, j, rest = tl.arange(0, TILE), tl.arange(0, TILE // 8), n - base
    if rest >= TILE:
        positive = (loaded(x + base, i, rest, False) >= 0).to(tl.int32)
        stored(bits + base // 8, j, 0, packed(positive, TILE, 8), False)
    else:
        positive = ((loaded(x + base, i, rest, True) >= 0) & (i < rest)).to(tl.int32)
        stored(bits + base // 8, j, (rest + 7) // 8, packed(positive, TILE, 8), True)


def pack_signs(x: Tensor) -> Tensor:
    if not plain(x):
        return reference.pack_signs(x)
    bits = torch.empty(-(-x.numel() // 8), dtype=torch.uint8, device=x.device)
    _pack_signs[(triton.cdiv(x.numel(), _TILE),)](
        x, x.numel(), bits, _TILE, num_warps=_TILE_WARPS, enable_fp_fusion=False
    )
    return bits


@triton.jit
def _added(carry, p0, p1, p2, p3, p4, p5, p6, p7, PLANES: tl.constexpr):
    """Add one more vote to the counters."""
    p0, carry = p0 ^ carry, p0 & carry
    if PLANES > 1:
        p1, carry = p1 ^ carry, p1 & carry
    if PLANES > 2:
        p2, carry = p2 ^ carry, p2 & carry
    if PLANES > 3:
        p3, carry = p3 ^ carry, p3 & carry
    if PLANES > 4:
        p4, carry = p4 ^ carry, p4 & carry
    if PLANES > 5:
        p5, carry = p5 ^ carry, p5 & carry
    if PLANES > 6:
        p6, carry = p6 ^ carry, p6 & carry
    if PLANES > 7:
        p7 = p7 ^ carry
    return p0, p1, p2, p3, p4, p5, p6, p7


@triton.jit
def _reached(ge, plane, half, K: tl.constexpr):
    """Tell whether counts up to this plane are at least `half` up to this bit, given that (`ge`) for those below."""
    other = ((half >> K) & 1) - 1  # all ones where half has a zero here
    return (plane & ge) | ((plane | ge) & other)


@triton.jit
def _words(rows, start, j, ALIGNED: tl.constexpr):
    """Return four bytes from any byte on: a word, or parts of two."""
    words = rows.to(tl.pointer_type(tl.int32))
    if ALIGNED:
        return tl.load(words + start // 4 + j)
    else:
        word = tl.load(words + start // 4 + j)
        shift = (start % 4 * 8).to(tl.int32)
        if shift > 0:
            after = tl.load(words + start // 4 + 1 + j)
            word = ((word.to(tl.uint32) >> shift) | (after.to(tl.uint32) << (32 - shift))).to(tl.int32)
        return word


@triton.jit
def _heard(rows, start, j, rest, ALIGNED: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:  # byte by byte
        return tl.load(rows + start + j, mask=j < rest, other=0).to(tl.int32)
    else:
        return _words(rows, start, j, ALIGNED)


@triton.jit
def _counted(rows, first, stride, workers, j, rest, p0, WORKERS: tl.constexpr, PLANES: tl.constexpr,
             ALIGNED: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    p1, p2, p3, p4, p5, p6, p7 = p0, p0, p0, p0, p0, p0, p0
    if WORKERS:
        for r in tl.static_range(WORKERS):
            word = _heard(rows, first + r * stride, j, rest, ALIGNED, MASKED)
            p0, p1, p2, p3, p4, p5, p6, p7 = _added(word, p0, p1, p2, p3, p4, p5, p6, p7, PLANES)
    else:
        for r in range(workers):
            word = _heard(rows, first + r * stride, j, rest, ALIGNED, MASKED)
            p0, p1, p2, p3, p4, p5, p6, p7 = _added(word, p0, p1, p2, p3, p4, p5, p6, p7, PLANES)
    half = (tl.cast(workers, tl.int32) + 1) // 2
    ge = _reached(p0 | -1, p0, half, 0)
    if PLANES > 1:
        ge = _reached(ge, p1, half, 1)
    if PLANES > 2:
        ge = _reached(ge, p2, half, 2)
    if PLANES > 3:
        ge = _reached(ge, p3, half, 3)
    if PLANES > 4:
        ge = _reached(ge, p4, half, 4)
    if PLANES > 5:
        ge = _reached(ge, p5, half, 5)
    if PLANES > 6:
        ge = _reached(ge, p6, half, 6)
    if PLANES > 7:
        ge = _reached(ge, p7, half, 7)
    return ge


@triton.jit(do_not_specialize=["workers", "length"])
def _vote(rows, before, stride, workers, length, out, WORDS: tl.constexpr, WORKERS: tl.constexpr, PLANES: tl.constexpr,
          ALIGNED: tl.constexpr):  # fmt: skip
    base = tl.program_id(0).to(tl.int64) * (4 * WORDS)
    stride, first = tl.cast(stride, tl.int64), tl.cast(before, tl.int64) + base
    if ALIGNED:
        stride, first = tl.multiple_of(stride, 16), base
    rows -= before  # so that words begin at multiples of four bytes
    rest = length - base
    if rest >= 4 * WORDS + 4:
        j = tl.arange(0, WORDS)
        sums = _counted(rows, first, stride, workers, j, rest, tl.zeros([WORDS], tl.int32), WORKERS, PLANES, ALIGNED,
                        False)  # fmt: skip
        tl.store((out + base).to(tl.pointer_type(tl.int32)) + j, sums)
    else:
        for k in tl.static_range(5):
            j = k * WORDS + tl.arange(0, WORDS)
            if k * WORDS < rest:
                sums = _counted(rows, first, stride, workers, j, rest, tl.zeros([WORDS], tl.int32), 0, PLANES, ALIGNED,
                                True)  # fmt: skip
                tl.store(out + base + j, sums.to(tl.uint8), mask=j < rest)


def vote(rows: Tensor) -> Tensor:
    workers, length = rows.shape
    planes = workers.bit_length()
    if planes > _PLANES or rows.dtype != torch.uint8:
        return reference.vote(rows)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    out = torch.empty(length, dtype=torch.uint8, device=rows.device)
    before, stride = rows.data_ptr() % 4, rows.stride(0)
    aligned = rows.data_ptr() % 16 == 0 and stride % 16 == 0
    _vote[(triton.cdiv(length, 4 * _WORDS),)](
        rows, before, stride, workers, length, out, _WORDS, unrolled(workers), planes, aligned,
        num_warps=_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["count"])
def _signs_of(bits, count, out, TILE: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * TILE
    i = tl.arange(0, TILE)
    rest = count - base
    if rest >= TILE:
        stored(out + base, i, rest, _plus_minus(bits + base // 8, rest, TILE, False), False)
    else:
        stored(out + base, i, rest, _plus_minus(bits + base // 8, rest, TILE, True), True)


@triton.jit
def _plus_minus(bits, rest, TILE: tl.constexpr, MASKED: tl.constexpr):
    """Return 1 with the sign bit set where its own bit is 0."""
    j = tl.arange(0, TILE // 8)
    if MASKED:
        byte = tl.load(bits + j, mask=8 * j < rest, other=0).to(tl.uint32)
    else:
        byte = tl.load(bits + j).to(tl.uint32)
    sign = (byte[:, None] << (31 - tl.arange(0, 8))[None, :]) & 0x80000000
    return tl.reshape((0xBF800000 ^ sign).to(tl.float32, bitcast=True), [TILE])


def signs_of(bits: Tensor, count: int) -> Tensor:
    out = torch.empty(count, device=bits.device)
    _signs_of[(triton.cdiv(count, _TILE),)](
        bits.contiguous(), count, out, _TILE, num_warps=_TILE_WARPS, enable_fp_fusion=False
    )
    return out

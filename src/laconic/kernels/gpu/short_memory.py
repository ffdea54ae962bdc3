"""Error feedback whose memory is integers of eight bits, in one pass: decode the memory, add the gradient, encode the
sum, and encode what was left out.

A program has one block of the memory, in registers; the blocks of the messages lie inside it. With a gradient of 16
bits and messages of four, an element takes 2 + 1 bytes read and 1/2 + 1 written, and the scales.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import block_rows
from laconic.kernels.gpu.block_codes import integer, share_of
from laconic.kernels.gpu.blocks import READ, encode_block_rows, encode_blocks
from laconic.kernels.gpu.blocks_received import decode_block_rows, mean_of_blocks
from laconic.kernels.gpu.triton_helpers import finite, loaded, stored, widened
from laconic.kernels.reference.blocks import BlockFormat

_LISTS = SimpleNamespace(
    encode_blocks=encode_blocks,
    mean_of_blocks=mean_of_blocks,
    encode_block_rows=encode_block_rows,
    decode_block_rows=decode_block_rows,
)  # what the loop is composed of where there is no single pass
_MOST = 4096  # values of a block of the memory that a program holds in registers
_NARROW = 1 << 30  # values of which every place is a number of 32 bits


@triton.jit
def _largest(v):
    """Return the largest magnitude of each row; infinity is above all numbers, and what is no number above that."""
    return tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1).to(tl.float32, bitcast=True)


@triton.jit
def _step(most, MOST: tl.constexpr):
    return tl.div_rn(most, tl.full(most.shape, MOST, tl.float32))


@triton.jit
def _fed_tile(x, codes, scale, new_codes, new_scale, message, row, at, n, size, rest, blend, KEPT: tl.constexpr,
              BLOCK: tl.constexpr, BITS: tl.constexpr, MOST: tl.constexpr, BLENDED: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = KEPT // BLOCK
    k = tl.arange(0, ROWS)
    i = k[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    unit = _step(tl.full([1, 1], 0.0, tl.float32) + tl.load(scale), 127.0)
    before = loaded(codes, i, rest, MASKED).to(tl.float32) * unit
    v = widened(loaded(x, i, rest, MASKED)) + before
    most = _largest(v)
    level = integer(share_of(v, most[:, None]), i, 0, 0, MOST, False)
    code = level.to(tl.int32) & ((1 << BITS) - 1)
    error = v - level * _step(most, MOST)[:, None]
    if BLENDED:
        error = before + blend * (error - before)
    error = finite(error)

    at += k * BLOCK  # where each block begins in its row of the matrix
    over = at // n
    at -= over * n
    begin = (row + over) * size
    inside = k * BLOCK < rest
    j = begin + at // (8 // BITS)
    width: tl.constexpr = BLOCK * BITS // 8
    places = tl.multiple_of(j, 4)[:, None] + tl.arange(0, width)[None, :]
    if BITS == 4:
        pairs = tl.reshape(code, [ROWS, width, 2]) << (tl.arange(0, 2) * 4)[None, None, :]
        code = tl.sum(pairs, axis=2)
    most = tl.where(most == most, most, float("nan"))
    put = (message + tl.multiple_of(begin + n // (8 // BITS) + at // BLOCK * 4, 4)).to(tl.pointer_type(tl.float32))
    if MASKED:
        tl.store(message + places, code.to(tl.uint8), mask=inside[:, None])
        tl.store(put, most, mask=inside)
    else:
        tl.store(message + places, code.to(tl.uint8))
        tl.store(put, most)

    left = tl.max(_largest(error), axis=0)
    kept = integer(share_of(error, tl.full([1, 1], 0.0, tl.float32) + left), i, 0, 0, 127.0, False)
    stored(new_codes, i, rest, kept.to(tl.int8), MASKED)
    tl.store(new_scale, left)


@triton.jit
def _fed(x, total, memory, kept, message, n, size, blend, KEPT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
         MOST: tl.constexpr, BLENDED: tl.constexpr, NARROW: tl.constexpr):  # fmt: skip
    whole: tl.constexpr = tl.int32 if NARROW else tl.int64  # divisions of 64 bits are slow
    number = tl.program_id(0).to(whole)
    base = number * KEPT
    n, total = tl.full([], 0, whole) + n, tl.full([], 0, whole) + total
    row = base // n
    codes, scale = memory + base, (memory + total).to(tl.pointer_type(tl.float32)) + number
    new_codes, new_scale = kept + base, (kept + total).to(tl.pointer_type(tl.float32)) + number
    if base + KEPT <= total:
        _fed_tile(x + base, codes, scale, new_codes, new_scale, message, row, base - row * n, n, size, total - base,
                  blend, KEPT, BLOCK, BITS, MOST, BLENDED, False)  # fmt: skip
    else:
        _fed_tile(x + base, codes, scale, new_codes, new_scale, message, row, base - row * n, n, size, total - base,
                  blend, KEPT, BLOCK, BITS, MOST, BLENDED, True)  # fmt: skip


def feed_short_memory(
    matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat, blend: float
) -> tuple[Tensor, Tensor]:
    rows, n = matrix.shape
    if not matrix.numel() or not _one_pass(matrix, memory, how, kept):
        return block_rows.feed_short_memory(_LISTS, matrix, memory, how, kept, blend)
    messages = torch.empty(rows, how.message_bytes(n), dtype=torch.uint8, device=matrix.device)
    after = torch.empty_like(memory)
    _fed[(-(-matrix.numel() // kept.block),)](
        matrix, matrix.numel(), memory.view(torch.int8), after.view(torch.int8), messages, n, messages.shape[1], blend,
        kept.block, how.block, how.width, float(how.whole), blend < 1, matrix.numel() < _NARROW,
        num_warps=max(1, kept.block // 256), enable_fp_fusion=False,
    )  # fmt: skip
    return messages, after


def _one_pass(matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat) -> bool:
    """Tell whether the blocks of the messages lie inside those of the memory, and all of them at whole bytes."""
    plain = matrix.dtype in READ and matrix.is_contiguous() and memory.is_contiguous() and memory.data_ptr() % 4 == 0
    whole = how.whole and how.scales == kept.scales == "float32" and not how.stochastic
    sizes = how.block >= 16 and how.block & (how.block - 1) == 0 and matrix.shape[1] % how.block == 0
    fits = kept == BlockFormat("int8", "float32", kept.block) and how.block <= kept.block <= _MOST
    return bool(plain and whole and sizes and fits and kept.block & (kept.block - 1) == 0)

"""Error feedback whose memory is integers of eight bits, in one pass: decode the memory, add the gradient, encode the
sum, and encode what was left out.

A program has one block of the memory, in registers; the blocks of the messages lie inside it. With a gradient of 16
bits and messages of four, an element takes 2 + 1 bytes read and 1/2 + 1 written, and the scales. Where the rows of a
matrix are no whole blocks of messages these lie across those of the memory, and there are two passes: one encodes row
by row, the other reads the codes and writes the memory.
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
from laconic.kernels.gpu.triton_helpers import finite, loaded, number_at, put_number, stored, widened
from laconic.kernels.reference.blocks import BlockFormat

_LISTS = SimpleNamespace(
    encode_blocks=encode_blocks,
    mean_of_blocks=mean_of_blocks,
    encode_block_rows=encode_block_rows,
    decode_block_rows=decode_block_rows,
)  # what the loop is composed of where there is no single pass
_TILE = 1024  # values of a row that a program encodes
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
def _remembered(codes, i, rest, most, MASKED: tl.constexpr):
    """Return values of a memory whose blocks have these largest magnitudes."""
    return loaded(codes, i, rest, MASKED).to(tl.int8, bitcast=True).to(tl.float32) * _step(most, 127.0)


@triton.jit
def _keep(error, i, rest, codes, scale, EVEN: tl.constexpr, MASKED: tl.constexpr):
    """Write a block of the memory."""
    error = finite(error)
    most = tl.max(_largest(error), axis=0)
    level = integer(share_of(error, tl.full([1, 1], 0.0, tl.float32) + most), i, 0, 0, 127.0, False)
    stored(codes, i, rest, level.to(tl.int8).to(tl.uint8, bitcast=True), MASKED)
    if EVEN:
        tl.store(scale.to(tl.pointer_type(tl.float32)), most)
    else:
        put_number(scale, most, True)


@triton.jit
def _fed_tile(x, codes, scale, new_codes, new_scale, message, row, at, n, size, rest, blend, KEPT: tl.constexpr,
              BLOCK: tl.constexpr, BITS: tl.constexpr, MOST: tl.constexpr, BLENDED: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = KEPT // BLOCK
    k = tl.arange(0, ROWS)
    i = k[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    past = tl.full([1, 1], 0.0, tl.float32) + tl.load(scale.to(tl.pointer_type(tl.float32)))
    before = _remembered(codes, i, rest, past, MASKED)
    v = widened(loaded(x, i, rest, MASKED)) + before
    most = _largest(v)
    level = integer(share_of(v, most[:, None]), i, 0, 0, MOST, False)
    code = level.to(tl.int32) & ((1 << BITS) - 1)
    error = v - level * _step(most, MOST)[:, None]
    if BLENDED:
        error = before + blend * (error - before)

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

    _keep(error, i, rest, new_codes, new_scale, True, MASKED)


@triton.jit
def _fed(x, total, memory, kept, message, n, size, blend, KEPT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
         MOST: tl.constexpr, BLENDED: tl.constexpr, NARROW: tl.constexpr):  # fmt: skip
    whole: tl.constexpr = tl.int32 if NARROW else tl.int64  # divisions of 64 bits are slow
    number = tl.program_id(0).to(whole)
    base = number * KEPT
    n, total = tl.full([], 0, whole) + n, tl.full([], 0, whole) + total
    row = base // n
    codes, new_codes = memory + base, kept + base
    scale, new_scale = memory + tl.multiple_of(total + 4 * number, 4), kept + tl.multiple_of(total + 4 * number, 4)
    if base + KEPT <= total:
        _fed_tile(x + base, codes, scale, new_codes, new_scale, message, row, base - row * n, n, size, total - base,
                  blend, KEPT, BLOCK, BITS, MOST, BLENDED, False)  # fmt: skip
    else:
        _fed_tile(x + base, codes, scale, new_codes, new_scale, message, row, base - row * n, n, size, total - base,
                  blend, KEPT, BLOCK, BITS, MOST, BLENDED, True)  # fmt: skip


@triton.jit
def _row_tile(x, codes, first, second, inside, message, scales, rest, BLOCK: tl.constexpr, TILE: tl.constexpr,
              BITS: tl.constexpr, MOST: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    ROWS: tl.constexpr = TILE // BLOCK
    k = tl.arange(0, ROWS)
    i = k[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    v = widened(loaded(x, i, rest, MASKED)) + _remembered(codes, i, rest, tl.where(i < inside, first, second), MASKED)
    most = _largest(v)
    level = integer(share_of(v, most[:, None]), i, 0, 0, MOST, False)
    code = level.to(tl.int32) & ((1 << BITS) - 1)
    width: tl.constexpr = BLOCK * BITS // 8
    j = k[:, None] * width + tl.arange(0, width)[None, :]
    if BITS == 4:
        code = tl.sum(tl.reshape(code, [ROWS, width, 2]) << (tl.arange(0, 2) * 4)[None, None, :], axis=2)
    stored(message, j, (rest * BITS + 7) // 8, code.to(tl.uint8), MASKED)
    put_number(scales + 4 * k, most, k * BLOCK < rest)


@triton.jit
def _encode_fed(x, total, memory, message, n, size, KEPT: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
                BITS: tl.constexpr, MOST: tl.constexpr):  # fmt: skip
    """Encode the rows of x + e. A tile reaches into two blocks of the memory at most."""
    row, base = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * TILE
    n, total = tl.full([], 0, tl.int64) + n, tl.full([], 0, tl.int64) + total
    begin = row * n + base
    block = begin // KEPT
    inside = (block + 1) * KEPT - begin  # values of the first one
    past = memory + total + 4 * block
    first = number_at(past)
    second = number_at(tl.where((block + 1) * KEPT < total, past + 4, past))
    message += row * size
    scales = message + (n * BITS + 7) // 8 + base // BLOCK * 4
    message += base // (8 // BITS)
    if base + TILE <= n:
        _row_tile(x + begin, memory + begin, first, second, inside, message, scales, n - base, BLOCK, TILE, BITS, MOST,
                  False)  # fmt: skip
    else:
        _row_tile(x + begin, memory + begin, first, second, inside, message, scales, n - base, BLOCK, TILE, BITS, MOST,
                  True)  # fmt: skip


@triton.jit
def _left_tile(x, codes, past, new_codes, new_scale, message, row, at, n, size, rest, blend, KEPT: tl.constexpr,
               BLOCK: tl.constexpr, BITS: tl.constexpr, MOST: tl.constexpr, BLENDED: tl.constexpr, EVEN: tl.constexpr,
               MASKED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, KEPT)[None, :]
    before = _remembered(codes, i, rest, tl.full([1, 1], 0.0, tl.float32) + past, MASKED)
    v = widened(loaded(x, i, rest, MASKED)) + before
    at += i
    over = at // n
    at -= over * n
    if MASKED:
        over, at = tl.where(i < rest, over, 0), tl.where(i < rest, at, 0)
    begin = (row + over) * size
    byte = tl.load(message + begin + at // (8 // BITS)).to(tl.int32)
    if BITS == 4:
        byte = byte >> ((at % 2) * 4).to(tl.int32)
    level = ((byte << (32 - BITS)) >> (32 - BITS)).to(tl.float32)
    scales = message + begin + (n * BITS + 7) // 8 + at // BLOCK * 4
    if EVEN:
        most = tl.load(scales.to(tl.pointer_type(tl.float32)))
    else:
        most = number_at(scales)
    error = v - level * _step(most, MOST)
    if BLENDED:
        error = before + blend * (error - before)
    if MASKED:
        error = tl.where(i < rest, error, 0.0)
    _keep(error, i, rest, new_codes, new_scale, False, MASKED)


@triton.jit
def _left(x, total, memory, kept, message, n, size, blend, KEPT: tl.constexpr, BLOCK: tl.constexpr, BITS: tl.constexpr,
          MOST: tl.constexpr, BLENDED: tl.constexpr, NARROW: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Remember what the messages of x + e leave out."""
    whole: tl.constexpr = tl.int32 if NARROW else tl.int64
    number = tl.program_id(0).to(whole)
    base = number * KEPT
    n, total = tl.full([], 0, whole) + n, tl.full([], 0, whole) + total
    row = base // n
    past, new_scale = number_at(memory + total + 4 * number), kept + total + 4 * number
    if base + KEPT <= total:
        _left_tile(x + base, memory + base, past, kept + base, new_scale, message, row, base - row * n, n, size,
                   total - base, blend, KEPT, BLOCK, BITS, MOST, BLENDED, EVEN, False)  # fmt: skip
    else:
        _left_tile(x + base, memory + base, past, kept + base, new_scale, message, row, base - row * n, n, size,
                   total - base, blend, KEPT, BLOCK, BITS, MOST, BLENDED, EVEN, True)  # fmt: skip


def feed_short_memory(
    matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat, blend: float
) -> tuple[Tensor, Tensor]:
    (rows, n), total = matrix.shape, matrix.numel()
    if not total or not _suits(matrix, memory, how, kept):
        return block_rows.feed_short_memory(_LISTS, matrix, memory, how, kept, blend)
    size, tile = how.message_bytes(n), min(kept.block, _TILE)
    messages = torch.empty(rows, size, dtype=torch.uint8, device=matrix.device)
    after = torch.empty_like(memory)
    given = (matrix, total, memory, after, messages, n, size, blend, kept.block, how.block, how.width, float(how.whole))
    form = {"BLENDED": blend < 1, "NARROW": total < _NARROW, "num_warps": max(1, kept.block // 256)}
    if n % how.block == 0 and memory.data_ptr() % 4 == 0:
        _fed[(-(-total // kept.block),)](*given, **form, enable_fp_fusion=False)
    else:
        _encode_fed[(-(-n // tile), rows)](
            matrix, total, memory, messages, n, size, kept.block, how.block, tile, how.width, float(how.whole),
            num_warps=max(1, tile // 256), enable_fp_fusion=False,
        )  # fmt: skip
        even = size % 4 == 0 and how.code_bytes(n) % 4 == 0
        _left[(-(-total // kept.block),)](*given, **form, EVEN=even, enable_fp_fusion=False)
    return messages, after


def _suits(matrix: Tensor, memory: Tensor, how: BlockFormat, kept: BlockFormat) -> bool:
    """Tell whether there are bodies: for integers in blocks that fit into those of the memory."""
    plain = matrix.dtype in READ and matrix.is_contiguous() and memory.is_contiguous()
    whole = how.whole and how.scales == "float32" and not how.stochastic
    sizes = all(block >= 16 and block & (block - 1) == 0 for block in (how.block, kept.block))
    bytes_of_eight = kept == BlockFormat("int8", "float32", kept.block)
    return bool(
        plain and whole and sizes and bytes_of_eight and how.block <= min(_TILE, kept.block) and kept.block <= _MOST
    )

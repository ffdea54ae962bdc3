"""Blocks that share a scale at memory speed: eight or four bits a value, error feedback in the same pass.

A tensor's part of a message is its codes, then a scale for each block. Where a block fits into registers, one pass
finds its scale, rounds and keeps the error: 4 + b/8 bytes an element, 12 + b/8 with a memory. One scale for a whole
tensor takes a pass before that, which finds the largest magnitude.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import block_rows, blocks, reference
from laconic.kernels.gpu.block_codes import constants, integer, power_code, power_inverse, power_value, share_of
from laconic.kernels.gpu.block_codes import short_float as short
from laconic.kernels.gpu.lists import keys_of, pointers, starts, table, tiled
from laconic.kernels.gpu.triton_helpers import (
    finite,
    key_of,
    loaded,
    located,
    pointed,
    put_number,
    stored,
    widened,
)
from laconic.kernels.lists import listed
from laconic.kernels.reference.blocks import BlockFormat

_TILE = 1024  # elements that a warp holds
_LEAST, _MOST = 16, 4096  # blocks between which a warp or a few hold one in registers
READ = (torch.float32, torch.bfloat16, torch.float16)  # what rows of a matrix may be


@triton.jit
def _pattern(v):
    """Return |v| as a whole number, in whose order infinity is above all numbers and what is no number above that."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _largest_tile(x, error, rest, found, TILE: tl.constexpr, FED: tl.constexpr, MASKED: tl.constexpr):
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED)
    if FED:
        v += loaded(error, i, rest, MASKED)
    tl.atomic_max(found, tl.max(_pattern(v), axis=0), sem="relaxed")


@triton.jit
def _largest(x, error, found, place_0, place_1, place_2, TILE: tl.constexpr, FED: tl.constexpr, LISTED: tl.constexpr,
             ALIGNED: tl.constexpr):  # fmt: skip
    """Find the largest magnitude of each tensor."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    if base + TILE <= n:
        _largest_tile(x, error, n - base, found + number, TILE, FED, False)
    else:
        _largest_tile(x, error, n - base, found + number, TILE, FED, True)


@triton.jit
def _put_scales(scales, pattern, code, rest, WIDTH: tl.constexpr, ROWS: tl.constexpr, E8M0: tl.constexpr,
                EVEN: tl.constexpr):  # fmt: skip
    row = tl.arange(0, ROWS)
    if E8M0:
        tl.store(scales + row, code.to(tl.uint8), mask=row * WIDTH < rest)
    else:
        most = pattern.to(tl.float32, bitcast=True)
        if EVEN:
            most = tl.where(most == most, most, float("nan"))
            tl.store(scales.to(tl.pointer_type(tl.float32)) + row, most, mask=row * WIDTH < rest)
        else:
            put_number(scales + 4 * row, most, row * WIDTH < rest)


@triton.jit
def _encode_tile(x, error, found, share, rest, base, low, high, codes, scales, BLOCK: tl.constexpr, TILE: tl.constexpr,
                 BITS: tl.constexpr, RANDOM: tl.constexpr, CEIL: tl.constexpr, FED: tl.constexpr, SHARED: tl.constexpr,
                 EVEN: tl.constexpr, MASKED: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
                 MOST: tl.constexpr, LAST: tl.constexpr, TOP: tl.constexpr, POWER: tl.constexpr,
                 E8M0: tl.constexpr):  # fmt: skip
    """Encode the blocks of a tile, a row each; or a tile as one row of a tensor whose largest magnitude is known."""
    WIDTH: tl.constexpr = BLOCK if BLOCK else TILE
    ROWS: tl.constexpr = TILE // WIDTH
    i = tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    v = widened(loaded(x, i, rest, MASKED))
    if FED:
        v += loaded(error, i, rest, MASKED)
    if BLOCK:
        pattern = tl.max(_pattern(v), axis=1)
    else:
        pattern = tl.full([1], 0, tl.int32) + tl.load(found)
    power = pattern
    if E8M0:
        power = power_code(pattern, TOP, POWER, CEIL)
        scaled = v * power_inverse(power)[:, None]
    else:
        most = pattern.to(tl.float32, bitcast=True)[:, None]
        scaled = share_of(v, most)
    if MANTISSA < 0:
        value = integer(scaled, base + i, low, high, MOST, RANDOM)
        code = value.to(tl.int32) & ((1 << BITS) - 1)
        value = value * tl.div_rn(most, tl.full(most.shape, MOST, tl.float32))
    else:
        if not E8M0:
            scaled = scaled * MOST
        number = scaled == scaled
        code, value = short(tl.abs(scaled), base + i, low, high, MANTISSA, BIAS, MOST, RANDOM)
        negative = (v.to(tl.int32, bitcast=True) < 0) & number
        code += tl.where(negative, 1 << (BITS - 1), 0)
        value = tl.where(negative, -value, value)
        if E8M0:
            value = value * power_value(power)[:, None]
        else:
            code = tl.where(number, code, 127)
            value = value * (1 / MOST) * most
    if FED:
        if SHARED:
            value = value * share
        stored(error, i, rest, finite(v - value), MASKED)
    if BITS == 4:
        if MASKED:
            code = tl.where(i < rest, code, 0)
        pairs = tl.reshape(code, [ROWS, WIDTH // 2, 2]) << (tl.arange(0, 2) * 4)[None, None, :]
        j = tl.arange(0, ROWS)[:, None] * (WIDTH // 2) + tl.arange(0, WIDTH // 2)[None, :]
        stored(codes, j, (rest + 1) // 2, tl.sum(pairs, axis=2).to(tl.uint8), MASKED)
    else:
        stored(codes, i, rest, code.to(tl.uint8), MASKED)
    if BLOCK:
        _put_scales(scales, pattern, power, rest, WIDTH, ROWS, E8M0, EVEN)
    else:
        _put_scales(scales, pattern, power, tl.where(base == 0, rest, 0), WIDTH, ROWS, E8M0, EVEN)


@triton.jit
def _encode_at(x, error, found, share, n, base, low, high, codes, BLOCK: tl.constexpr, TILE: tl.constexpr,
               BITS: tl.constexpr, RANDOM: tl.constexpr, CEIL: tl.constexpr, FED: tl.constexpr, SHARED: tl.constexpr,
               EVEN: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr, LAST: tl.constexpr,
               TOP: tl.constexpr, POWER: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    """Encode the tile at `base` of a tensor of n values, whose part of the message begins at `codes`."""
    length = (n * BITS + 7) // 8
    if EVEN:
        length = tl.multiple_of(length, 4)
    scales = codes + length
    if BLOCK:
        scales += base // BLOCK * (1 if E8M0 else 4)
    codes += base // (8 // BITS)
    if base + TILE <= n:
        _encode_tile(x, error, found, share, n - base, base, low, high, codes, scales, BLOCK, TILE, BITS, RANDOM, CEIL,
                     FED, SHARED, EVEN, False, MANTISSA, BIAS, MOST, LAST, TOP, POWER, E8M0)  # fmt: skip
    else:
        _encode_tile(x, error, found, share, n - base, base, low, high, codes, scales, BLOCK, TILE, BITS, RANDOM, CEIL,
                     FED, SHARED, EVEN, True, MANTISSA, BIAS, MOST, LAST, TOP, POWER, E8M0)  # fmt: skip


@triton.jit(do_not_specialize=["keys"])
def _encode_blocks(x, error, found, shares, place_0, place_1, place_2, keys, message, codes_at, BLOCK: tl.constexpr,
                   TILE: tl.constexpr, BITS: tl.constexpr, RANDOM: tl.constexpr, CEIL: tl.constexpr,
                   FED: tl.constexpr, SHARED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr,
                   EVEN: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, MOST: tl.constexpr,
                   LAST: tl.constexpr, TOP: tl.constexpr, POWER: tl.constexpr, E8M0: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    share = 1.0
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
        if SHARED:
            share = tl.load(shares + number)
    low, high = tl.full([], 0, tl.uint32), tl.full([], 0, tl.uint32)
    if RANDOM:
        low, high = key_of(keys, number)
    codes = message
    if LISTED:
        at = tl.load(codes_at + number)
        if EVEN:
            at = tl.multiple_of(at, 4)
        codes += at
    _encode_at(x, error, found + number, share, n, base, low, high, codes, BLOCK, TILE, BITS, RANDOM, CEIL, FED, SHARED,
               EVEN, MANTISSA, BIAS, MOST, LAST, TOP, POWER, E8M0)  # fmt: skip


@triton.jit(do_not_specialize=["key"])
def _encode_rows(x, n, key, message, size, BLOCK: tl.constexpr, TILE: tl.constexpr, BITS: tl.constexpr,
                 RANDOM: tl.constexpr, CEIL: tl.constexpr, EVEN: tl.constexpr, MANTISSA: tl.constexpr,
                 BIAS: tl.constexpr, MOST: tl.constexpr, LAST: tl.constexpr, TOP: tl.constexpr, POWER: tl.constexpr,
                 E8M0: tl.constexpr):  # fmt: skip
    row, base = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * TILE
    low, high = tl.full([], 0, tl.uint32), tl.full([], 0, tl.uint32)
    if RANDOM:
        low, high = key_of(key, 0)
    at = row * size
    if EVEN:
        at = tl.multiple_of(at, 4)
    x += row * n + base
    _encode_at(x, x, x, 1.0, tl.full([], 0, tl.int64) + n, base, low, high, message + at, BLOCK, TILE, BITS, RANDOM,
               CEIL, False, False, EVEN, MANTISSA, BIAS, MOST, LAST, TOP, POWER, E8M0)  # fmt: skip


def fits(how: BlockFormat) -> bool:
    """Tell whether there are bodies for blocks of this length."""
    return how.block == 0 or (_LEAST <= how.block <= _MOST and how.block & (how.block - 1) == 0)


@lru_cache(1024)
def layout(lengths: tuple[int, ...], how: BlockFormat, device: torch.device) -> tuple[Tensor, int, int]:
    """Return where each tensor's part of a message begins, the length of the message, and the power of two of which
    codes and scales begin at multiples: 8, 4 or 1 bytes."""
    at = starts([how.message_bytes(n) for n in lengths])
    scales = any(how.code_bytes(n) % 4 for n in lengths)
    unit = 1 if scales or any(where % 4 for where in at[:-1]) else 4 if any(where % 8 for where in at[:-1]) else 8
    return table(at[:-1], torch.int64, device), at[-1], unit


def encode_blocks(
    xs: Sequence[Tensor],
    errors: Sequence[Tensor] | None,
    how: BlockFormat,
    keys: Sequence[int],
    shares: Sequence[float] | None = None,
) -> Tensor:
    xs, errors = listed(xs), None if errors is None else listed(errors)
    if not fits(how) or not xs.plain or not (errors or xs).plain:
        return blocks.encode_blocks(reference, xs, errors, how, keys, shares)
    device, tile = xs[0].device, max(_TILE, how.block)
    tiles, (at, size, unit) = tiled(xs.lengths, tile, device), layout(xs.lengths, how, device)
    message = torch.empty(size, dtype=torch.uint8, device=device)
    if not tiles.count:
        return message
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(errors or xs)
    one = {"LISTED": len(xs) > 1, "ALIGNED": aligned and aligned_too, "FED": errors is not None}
    found = at if how.block else torch.zeros(len(xs), dtype=torch.int32, device=device)
    if not how.block:
        _largest[(tiles.count,)](given, memory, found, *tiles.place, tile, **one, num_warps=tile // _TILE)
    counted = found if shares is None else table(tuple(shares), torch.float32, device)
    _encode_blocks[(tiles.count,)](
        given, memory, found, counted, *tiles.place, keys_of(keys, device) if how.stochastic else 0, message, at,
        how.block, tile, how.width, how.stochastic, how.ceil, SHARED=shares is not None, EVEN=unit > 1, **one,
        **constants(how), num_warps=tile // _TILE, enable_fp_fusion=False,
    )  # fmt: skip
    return message


def encode_block_rows(matrix: Tensor, how: BlockFormat, key: int) -> Tensor:
    rows, n = matrix.shape
    if not fits(how) or not how.block or matrix.dtype not in READ or not matrix.is_contiguous():
        return block_rows.encode_block_rows(reference, matrix, how, key)
    size, tile = how.message_bytes(n), max(_TILE, how.block)
    messages = torch.empty(rows, size, dtype=torch.uint8, device=matrix.device)
    if matrix.numel():
        even = size % 4 == 0 and how.code_bytes(n) % 4 == 0
        _encode_rows[(-(-n // tile), rows)](
            matrix, n, keys_of([key], matrix.device), messages, size, how.block, tile, how.width, how.stochastic,
            how.ceil, EVEN=even, **constants(how), num_warps=tile // _TILE, enable_fp_fusion=False,
        )  # fmt: skip
    return messages

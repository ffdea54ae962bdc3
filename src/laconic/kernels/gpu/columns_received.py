"""The mean of many workers' bits and column means without materialising any of their tensors.

Reads every message once and writes the mean: 4 + N/8 bytes an element for N workers. A thread takes eight neighbouring
bits as a byte and keeps a sum for each; in a tile of rows and columns it reads the means of eight columns once for all
its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.gpu.column_lists import Layout, layout_of, tiles_of
from laconic.kernels.gpu.eligibility import averaged, unrolled
from laconic.kernels.gpu.lists import outputs, table, tiled, views
from laconic.kernels.gpu.triton_helpers import located, number_at

_ROWS, _COLUMNS, _WARPS = 32, 256, 4  # of a tile
_TILE, _TILE_WARPS = 2048, 4  # where elements go in the order of memory
_ALIGNED = 1024


@triton.jit(do_not_specialize=["place_2", "stride", "room"])
def _align(rows, stride, pairs, room, facts, place_0, place_1, place_2, TILE: tl.constexpr, LISTED: tl.constexpr):
    """Copy all workers' means to floats that begin at multiples of four bytes."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    worker = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, TILE)
    row = rows + worker * stride + tl.load(facts + 2 * number) + 4 * base
    found = number_at(row + 4 * tl.where(i < n - base, i, 0))
    tl.store(pairs + worker * room + tl.load(facts + 2 * number + 1) + base + i, found, mask=i < n - base)


def _aligned(rows: Tensor, layout: Layout) -> Tensor:
    device, lengths = rows.device, tuple(2 * columns for _, columns in layout.shapes)
    facts = tuple(
        number
        for part, size, at in zip(layout.parts_at, layout.bits, layout.means_at, strict=False)
        for number in (part + size, at)
    )
    pairs = torch.empty(len(rows), layout.means_at[-1], device=device)
    tiles = tiled(lengths, _ALIGNED, device)
    _align[(tiles.count, len(rows))](
        rows, rows.shape[1], pairs, pairs.shape[1], table(facts, torch.int64, device), *tiles.place, _ALIGNED,
        tiles.listed, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return pairs


@triton.jit
def _own(byte, pairs, columns, c, K: tl.constexpr, KIND: tl.constexpr):
    """Return the value that a bit stands for: the lower or the upper mean of its column."""
    if KIND == "alone":
        at = pairs
    elif KIND == "wide":
        at = pairs + (c + K)
    else:
        at = pairs + (c + K) % columns
    return tl.where((byte & (1 << K)) != 0, tl.load(at + columns), tl.load(at))


@triton.jit
def _heard(bits, inside, pairs, columns, c, t0, t1, t2, t3, t4, t5, t6, t7, KIND: tl.constexpr, MASKED: tl.constexpr):
    """Return the eight sums plus this worker's values."""
    if MASKED:
        byte = tl.load(bits, mask=inside, other=0).to(tl.int32)
    else:
        byte = tl.load(bits).to(tl.int32)
    t0 += _own(byte, pairs, columns, c, 0, KIND)
    t1 += _own(byte, pairs, columns, c, 1, KIND)
    t2 += _own(byte, pairs, columns, c, 2, KIND)
    t3 += _own(byte, pairs, columns, c, 3, KIND)
    t4 += _own(byte, pairs, columns, c, 4, KIND)
    t5 += _own(byte, pairs, columns, c, 5, KIND)
    t6 += _own(byte, pairs, columns, c, 6, KIND)
    t7 += _own(byte, pairs, columns, c, 7, KIND)
    return t0, t1, t2, t3, t4, t5, t6, t7


@triton.jit
def _mean(bits, inside, stride, workers, pairs, room, columns, c, t0, WORKERS: tl.constexpr, KIND: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    """Return the means of eight neighbouring elements each, one behind another."""
    t1, t2, t3, t4, t5, t6, t7 = t0, t0, t0, t0, t0, t0, t0
    if (
        WORKERS and KIND == "alone"
    ):  # where a worker has means for eight columns, those of many would fill all registers
        for r in tl.static_range(WORKERS):
            t0, t1, t2, t3, t4, t5, t6, t7 = _heard(bits + r * stride, inside, pairs + r * room, columns, c, t0, t1, t2,
                                                    t3, t4, t5, t6, t7, KIND, MASKED)  # fmt: skip
    else:
        for r in range(workers):
            t0, t1, t2, t3, t4, t5, t6, t7 = _heard(bits + r * stride, inside, pairs + r * room, columns, c, t0, t1, t2,
                                                    t3, t4, t5, t6, t7, KIND, MASKED)  # fmt: skip
    even = tl.join(tl.join(t0, t4), tl.join(t2, t6))
    odd = tl.join(tl.join(t1, t5), tl.join(t3, t7))
    return averaged(tl.join(even, odd), workers, WORKERS)


@triton.jit
def _wide_tile(bits, stride, workers, pairs, room, columns, rows, left, total, ROWS: tl.constexpr,
               COLUMNS: tl.constexpr, WORKERS: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    EIGHTS: tl.constexpr = COLUMNS // 8
    r, b = tl.arange(0, ROWS)[:, None], tl.arange(0, EIGHTS)[None, :]
    c = 8 * b
    if MASKED:
        c = tl.where(c < left, c, 0)
    t0 = tl.zeros([ROWS, EIGHTS], tl.float32)
    inside = (r < rows) & (8 * b < left)
    bits += r * (columns // 8) + b
    found = _mean(bits, inside, stride, workers, pairs, room, columns, c, t0, WORKERS, "wide", MASKED)
    found = tl.reshape(found, [ROWS, COLUMNS])
    c = tl.arange(0, COLUMNS)[None, :]
    if MASKED:
        tl.store(total + r * columns + c, found, mask=(r < rows) & (c < left))
    else:
        tl.store(total + r * columns + c, found)


@triton.jit(do_not_specialize=["place_2", "workers", "stride", "room"])
def _by_tiles(rows, stride, workers, pairs, room, facts, total, place_0, place_1, place_2, ROWS: tl.constexpr,
              COLUMNS: tl.constexpr, WORKERS: tl.constexpr, LISTED: tl.constexpr):  # fmt: skip
    number, tile, _ = located(place_0, place_1, place_2, 1, LISTED)
    facts += 5 * number
    high, columns = tl.load(facts), tl.load(facts + 1) // 8 * 8
    across = (columns + COLUMNS - 1) // COLUMNS
    row, column = tile // across * ROWS, tile % across * COLUMNS
    begin = row * columns + column
    pairs += tl.multiple_of(tl.load(facts + 2), 4) + column
    bits = rows + tl.load(facts + 3) + begin // 8
    total += tl.multiple_of(tl.load(facts + 4), 4) + begin
    stride, room = tl.cast(stride, tl.int64), tl.cast(room, tl.int64)
    high, left = high - row, columns - column
    if (high >= ROWS) & (left >= COLUMNS):
        _wide_tile(bits, stride, workers, pairs, room, columns, high, left, total, ROWS, COLUMNS, WORKERS, False)
    else:
        _wide_tile(bits, stride, workers, pairs, room, columns, high, left, total, ROWS, COLUMNS, WORKERS, True)


@triton.jit
def _tile(bits, stride, workers, pairs, room, columns, base, rest, total, TILE: tl.constexpr, WORKERS: tl.constexpr,
          KIND: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    b = tl.arange(0, TILE // 8)
    c = (base % columns).to(tl.int32) + 8 * b
    t0 = tl.zeros([TILE // 8], tl.float32)
    width = columns.to(tl.int32)
    found = _mean(bits + b, 8 * b < rest, stride, workers, pairs, room, width, c, t0, WORKERS, KIND, MASKED)
    found = tl.reshape(found, [TILE])
    i = tl.arange(0, TILE)
    if MASKED:
        tl.store(total + i, found, mask=i < rest)
    else:
        tl.store(total + i, found)


@triton.jit(do_not_specialize=["place_2", "workers", "stride", "room"])
def _in_order(rows, stride, workers, pairs, room, facts, total, place_0, place_1, place_2, TILE: tl.constexpr,
              WORKERS: tl.constexpr, KIND: tl.constexpr, LISTED: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    facts += 5 * number
    columns = tl.load(facts + 1)
    pairs += tl.load(facts + 2)
    bits = rows + tl.load(facts + 3) + base // 8
    total += tl.multiple_of(tl.load(facts + 4), 4) + base
    stride, room = tl.cast(stride, tl.int64), tl.cast(room, tl.int64)
    if base + TILE <= n:
        _tile(bits, stride, workers, pairs, room, columns, base, n - base, total, TILE, WORKERS, KIND, False)
    else:
        _tile(bits, stride, workers, pairs, room, columns, base, n - base, total, TILE, WORKERS, KIND, True)


def mean_of_columns(rows: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    device, rows, layout = rows.device, rows.contiguous(), layout_of(tuple((r, c) for r, c in shapes), rows.device)
    lengths = tuple(r * c for r, c in shapes)
    (means, _), pairs = outputs(lengths, device), _aligned(rows, layout)
    (workers, stride), room = rows.shape, pairs.shape[1]
    for kind in layout.kinds:
        given = (rows, stride, workers, pairs, room, kind.facts, means)
        if kind.name == "wide":
            tiles = tiles_of(tuple(layout.shapes[t] for t in kind.members), _ROWS, _COLUMNS, device)
            _by_tiles[(tiles.count,)](
                *given, *tiles.place, _ROWS, _COLUMNS, unrolled(workers), tiles.listed,
                num_warps=_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
        else:
            tiles = tiled(tuple(lengths[t] for t in kind.members), _TILE, device)
            _in_order[(tiles.count,)](
                *given, *tiles.place, _TILE, unrolled(workers), kind.name, tiles.listed,
                num_warps=_TILE_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
    return views(means, lengths)

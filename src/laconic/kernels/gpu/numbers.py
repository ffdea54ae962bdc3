"""Whole numbers of any width, packed without gaps, and the places and values of sparse messages of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.lists import starts, table
from laconic.kernels.gpu.sparse_means import write_mean
from laconic.kernels.sparse_messages import count_in, part_bytes

_TILE, _WARPS = 1024, 4
_PROGRAMS = 64  # of one part
_MOST = (1 << 31) - (1 << 20)  # the largest number of elements


@triton.jit
def _number(packed, j, width, inside):
    """Return numbers j of so many bits, which span five bytes at most."""
    bit = j.to(tl.int64) * width
    byte, last = bit >> 3, (bit + width - 1) >> 3
    word = tl.load(packed + byte, mask=inside, other=0).to(tl.uint64)
    for k in tl.static_range(1, 5):
        more = tl.load(packed + byte + k, mask=inside & (byte + k <= last), other=0)
        word |= more.to(tl.uint64) << (8 * k)
    ones = (tl.full([], 1, tl.uint64) << width.to(tl.uint64)) - 1
    return ((word >> (bit & 7).to(tl.uint64)) & ones).to(tl.int64)


@triton.jit
def _read_parts(rows, table, widths, begins, places, values, TILE: tl.constexpr, RELATIVE: tl.constexpr):
    """Read places and values of a worker's part of a tensor. The table has the parts' addresses, in memory or behind
    `rows` (RELATIVE), their counts and where each one's entries begin, by worker and tensor."""
    number, worker = tl.program_id(1), tl.program_id(2)
    all_parts = tl.num_programs(1) * tl.num_programs(2)
    at = table + worker * tl.num_programs(1) + number
    part, count, to = tl.load(at), tl.load(at + all_parts).to(tl.int32), tl.load(at + 2 * all_parts)
    if RELATIVE:
        part = rows + part
    else:
        part = part.to(tl.pointer_type(tl.uint8))
    width, begin = tl.load(widths + number), tl.load(begins + number)
    bits = part + ((count.to(tl.int64) * width + 7) >> 3)
    for first in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
        j = first + tl.arange(0, TILE)
        inside = j < count
        tl.store(places + to + j, begin + _number(part, j, width, inside), mask=inside)
        word = tl.zeros([TILE], tl.uint32)
        for k in tl.static_range(4):
            word |= tl.load(bits + 4 * j.to(tl.int64) + k, mask=inside, other=0).to(tl.uint32) << (8 * k)
        tl.store(values + to + j, word.to(tl.float32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["count", "width"])
def _unpack(packed, count, width, codes, TILE: tl.constexpr):
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    wide = tl.full([], 0, tl.int32) + width
    tl.store(codes + j, _number(packed, j, wide, j < count), mask=j < count)


@triton.jit(do_not_specialize=["count", "width", "length"])
def _pack(codes, count, width, length, packed, TILE: tl.constexpr):
    """Write bytes, each made of all the numbers that have bits in it."""
    byte = tl.program_id(0) * TILE + tl.arange(0, TILE)
    bit = byte.to(tl.int64) * 8
    first = bit // width
    found = tl.zeros([TILE], tl.int64)
    for k in range(0, 1 + (6 + width) // width):
        j = first + k
        number = tl.load(codes + j, mask=j < count, other=0) & ((tl.full([], 1, tl.int64) << width) - 1)
        shift = j * width - bit
        left, right = tl.minimum(tl.maximum(shift, 0), 8), tl.maximum(0 - shift, 0)
        found |= (number << left) >> right
    tl.store(packed + byte, (found & 0xFF).to(tl.uint8), mask=byte < length)


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    length = -(-codes.numel() * bits // 8)
    if codes.dtype != torch.int64 or not codes.is_contiguous() or not 0 < codes.numel() < _MOST // 4:
        return reference.pack_numbers(codes, bits)
    packed = torch.empty(length, dtype=torch.uint8, device=codes.device)
    _pack[(-(-length // _TILE),)](codes, codes.numel(), bits, length, packed, _TILE, num_warps=_WARPS)
    return packed


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    if packed.dtype != torch.uint8 or not packed.is_contiguous() or not 0 < count < _MOST:
        return reference.unpack_numbers(packed, bits, count)
    codes = torch.empty(count, dtype=torch.int64, device=packed.device)
    _unpack[(-(-count // _TILE),)](packed, count, bits, codes, _TILE, num_warps=_WARPS)
    return codes


@lru_cache(1024)
def _parts(counts: tuple[int, ...], widths: tuple[int, ...], workers: int, device: torch.device) -> Tensor:
    """Return where each part begins in rows of messages, how many places it has and where its entries begin."""
    sizes = starts([part_bytes(count, width) for count, width in zip(counts, widths, strict=True)])
    entries, rows = starts(counts), np.arange(workers)
    begins = np.add.outer(sizes[-1] * rows, sizes[:-1]), np.add.outer(entries[-1] * rows, entries[:-1])
    return torch.from_numpy(np.stack([begins[0], np.tile(counts, (workers, 1)), begins[1]])).to(device)


def average_places(
    total: Tensor,
    rows: Tensor,
    lengths: Sequence[int],
    counts: Sequence[int],
    widths: Sequence[int],
    left_out: float,
) -> None:
    rows = rows.contiguous()
    parts = _parts(tuple(counts), tuple(widths), len(rows), total.device)
    _average(total, rows, parts, max(counts), [sum(counts)] * len(rows), tuple(lengths), tuple(widths), left_out)


def average_counted_places(
    total: Tensor, rows: Sequence[Sequence[Tensor]], lengths: Sequence[int], widths: Sequence[int], left_out: float
) -> None:
    addresses = [[part.data_ptr() + 4 for part in row] for row in rows]
    counts = np.array([[count_in(part.numel(), w) for part, w in zip(row, widths, strict=True)] for row in rows])
    entries = np.cumsum(counts).reshape(counts.shape) - counts
    parts = torch.from_numpy(np.stack([np.array(addresses), counts, entries]))
    if total.is_cuda:
        parts = parts.pin_memory().to(total.device, non_blocking=True)
    sent = [int(count) for count in counts.sum(1)]
    _average(total, None, parts, int(counts.max()), sent, tuple(lengths), tuple(widths), left_out)


def _average(
    total: Tensor, rows: Tensor | None, parts: Tensor, most: int, sent: Sequence[int], lengths: tuple[int, ...],
    widths: tuple[int, ...], left_out: float,
) -> None:  # fmt: skip
    """Read all parts, with places of one long vector, which then is averaged as one tensor."""
    device = total.device
    places = torch.empty(sum(sent), dtype=torch.int64, device=device)
    values = torch.empty(sum(sent), device=device)
    if most:
        _read_parts[(min(-(-most // _TILE), _PROGRAMS), len(lengths), len(sent))](
            values if rows is None else rows, parts, table(widths, torch.int32, device),
            table(starts(lengths)[:-1], torch.int64, device), places, values, _TILE, rows is not None,
            num_warps=_WARPS,
        )  # fmt: skip
    write_mean(total, places.split(list(sent)), values.split(list(sent)), left_out)

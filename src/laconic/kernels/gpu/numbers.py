"""Whole numbers of any width, packed without gaps, and the places and values of sparse messages of all workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference, sparse_messages
from laconic.kernels.gpu.lists import starts, table
from laconic.kernels.gpu.sparse_means import Entries, suits, write_mean
from laconic.kernels.sparse_messages import part_bytes

_TILE, _WARPS = 1024, 4
_PROGRAMS = 64  # of one part
_BLOCK = 256  # parts whose entries are counted at once
_MOST = (1 << 31) - (1 << 20)  # the largest number of elements


@triton.jit
def _bits(packed, bit, width, inside):
    """Return so many bits from any bit behind a pointer to bytes on, 32 at most: of one word of memory, or of two."""
    address = packed.to(tl.int64) + (bit >> 3)
    word = (address & -4).to(tl.pointer_type(tl.uint32))
    shift = ((address & 3) << 3) + (bit & 7)
    low = tl.load(word, mask=inside, other=0).to(tl.uint64)
    high = tl.load(word + 1, mask=inside & (shift + width > 32), other=0).to(tl.uint64)
    ones = (tl.full([], 1, tl.uint64) << width.to(tl.uint64)) - 1
    return (((high << 32) | low) >> shift.to(tl.uint64)) & ones


@triton.jit(do_not_specialize=["stride", "row", "parts"])
def _count_entries(rows, stride, begins, most, parts, row, entries, totals, BLOCK: tl.constexpr):
    """Read how many places each part of a worker's message has, at most so many: where each one's entries begin if they
    lie one behind another, and their total."""
    worker = tl.program_id(0)
    rows += worker.to(tl.int64) * stride
    before = tl.full([], 0, tl.int32)
    for first in range(0, parts, BLOCK):
        j = first + tl.arange(0, BLOCK)
        inside = j < parts
        begin = tl.load(begins + j, mask=inside, other=4)
        count = tl.zeros([BLOCK], tl.int32)
        for k in tl.static_range(4):
            count |= tl.load(rows + begin + (k - 4), mask=inside, other=0).to(tl.int32) << (8 * k)
        count = tl.minimum(tl.maximum(count, 0), tl.load(most + j, mask=inside, other=0))
        tl.store(entries + worker * row + j, before + tl.cumsum(count, 0) - count, mask=inside)
        before += tl.sum(count, 0)
    tl.store(entries + worker * row + parts, before)
    tl.store(totals + worker, before)


@triton.jit(do_not_specialize=["stride", "row", "room"])
def _read_parts(rows, stride, begins, most, widths, firsts, entries, row, places, values, room, TILE: tl.constexpr):
    """Read places and values of a worker's part of a tensor to where its entries are, from `entries`, a row for each
    worker, as places of one long vector in which the tensor has its first place."""
    number, worker = tl.program_id(1), tl.program_id(2).to(tl.int64)
    part = rows + worker * stride + tl.load(begins + number)
    at = entries + worker * row + number
    begin = tl.load(at)
    count, to = tl.load(at + 1) - begin, worker * room + begin
    width, first_place = tl.load(widths + number), tl.load(firsts + number)
    bits = part + ((tl.load(most + number).to(tl.int64) * width + 7) >> 3)
    for first in range(tl.program_id(0) * TILE, count, tl.num_programs(0) * TILE):
        j = first + tl.arange(0, TILE)
        inside = j < count
        place = first_place + _bits(part, j.to(tl.int64) * width, width, inside).to(tl.int64)
        tl.store(places + to + j, place.to(tl.int32), mask=inside)
        value = _bits(bits, j.to(tl.int64) * 32, tl.full([], 32, tl.int64), inside).to(tl.uint32)
        tl.store(values + to + j, value.to(tl.float32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["count", "width"])
def _unpack(packed, count, width, codes, TILE: tl.constexpr):
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    wide = tl.full([], 0, tl.int32) + width
    tl.store(codes + j, _bits(packed, j.to(tl.int64) * wide, wide, j < count).to(tl.int64), mask=j < count)


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


def average_places(
    total: Tensor,
    rows: Tensor,
    lengths: Sequence[int],
    most: Sequence[int],
    widths: Sequence[int],
    counted: bool,
    left_out: float,
) -> None:
    device, rows, room = total.device, rows.contiguous(), sum(most)
    if left_out or not suits(total) or not room:
        sparse_messages.average_places(reference, total, rows, lengths, most, widths, counted, left_out)
        return
    workers, parts = len(rows), len(lengths)
    sizes = [part_bytes(count, width, counted) for count, width in zip(most, widths, strict=True)]
    begins = table(tuple(begin + 4 * counted for begin in starts(sizes)[:-1]), torch.int64, device)
    ks, bits = table(tuple(most), torch.int32, device), table(tuple(widths), torch.int32, device)
    if counted:
        row, both = parts + 1, torch.empty(workers * (parts + 2), dtype=torch.int32, device=device)
        entries, totals = both[workers:], both[:workers]
        _count_entries[(workers,)](
            rows, rows.shape[1], begins, ks, parts, row, entries, totals, _BLOCK, num_warps=_WARPS
        )
    else:
        row, entries = 0, table(starts(most), torch.int32, device)
        totals = table((room,) * workers, torch.int32, device)
    places = torch.empty(workers * room, dtype=torch.int32, device=device)
    values = torch.empty(workers * room, device=device)
    _read_parts[(min(-(-max(most) // _TILE), _PROGRAMS), parts, workers)](
        rows, rows.shape[1], begins, ks, bits, table(starts(lengths)[:-1], torch.int64, device), entries, row, places,
        values, room, _TILE, num_warps=_WARPS,
    )  # fmt: skip
    offsets = table(tuple(worker * room for worker in range(workers)) * 2, torch.int64, device)
    write_mean(total, Entries(places, values, offsets, totals, room), left_out)

"""Signs at memory speed: error feedback + sign + pack, and the sum of many workers' bits.

A tensor's part of a message is its bits, then its scale. The mean of magnitudes needs all of them before the first
error is known: one pass reads both inputs, another reads them again and writes errors and bits, 20.1 bytes an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import messages, reference
from laconic.kernels.gpu.lists import Tiles, pointers, starts, table, tiled
from laconic.kernels.gpu.triton_helpers import (
    block_summed,
    finite,
    loaded,
    located,
    packed,
    pointed,
    put_number,
    stored,
)
from laconic.kernels.lists import listed
from laconic.kernels.sums import BLOCK

_SUMMED = 2 * BLOCK  # elements that one warp sums, without communication between warps
_TILE = 2048


@triton.jit
def _magnitudes(x, error, place_0, place_1, place_2, sums, begins, BLOCK: tl.constexpr, TILE: tl.constexpr,
                LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Compute the sum of |x + error| over each block."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    error = pointed(error, number, LISTED, ALIGNED) + base
    i = tl.arange(0, TILE)
    if base + TILE <= n:
        v = loaded(x, i, n - base, False) + loaded(error, i, n - base, False)
    else:
        v = loaded(x, i, n - base, True) + loaded(error, i, n - base, True)
    found = block_summed(tl.abs(v), TILE // BLOCK, BLOCK)
    block = base // BLOCK + tl.arange(0, TILE // BLOCK)
    begin = tl.load(begins + number)
    tl.store(sums + begin + block, found, mask=block * BLOCK < n)


@triton.jit
def _sums_of_sums(sums, begins, place_0, place_1, place_2, out, ends, BLOCK: tl.constexpr, LISTED: tl.constexpr):
    """Compute the sum of each block of sums."""
    number, base, n = located(place_0, place_1, place_2, BLOCK, LISTED)
    i = tl.arange(0, BLOCK)
    v = tl.load(sums + tl.load(begins + number) + base + i, mask=i < n - base, other=0.0)
    one = tl.arange(0, 1)
    tl.store(out + tl.load(ends + number) + base // BLOCK + one, block_summed(v, 1, BLOCK))


@dataclass(frozen=True)
class _Level:
    """The arguments of a launch of `_sums_of_sums`."""

    begins: Tensor
    tiles: Tiles
    ends: Tensor
    size: int


@lru_cache(1024)
def _levels(counts: tuple[int, ...], device: torch.device) -> list[_Level]:
    found = []
    while max(counts) > 1:
        fewer = tuple(-(-count // BLOCK) for count in counts)
        begins, ends = (table(starts(some)[:-1], torch.int64, device) for some in (counts, fewer))
        found.append(_Level(begins, tiled(counts, BLOCK, device), ends, sum(fewer)))
        counts = fewer
    return found


def finished(sums: Tensor, counts: Sequence[int]) -> Tensor:
    """Return one sum for each tensor from the sums of its blocks, `counts` of them each, one behind another."""
    for level in _levels(tuple(counts), sums.device):
        out = torch.empty(level.size, device=sums.device)
        _sums_of_sums[(level.tiles.count,)](
            sums, level.begins, *level.tiles.place, out, level.ends, BLOCK, level.tiles.listed,
            num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        sums = out
    return sums


@triton.jit
def _keep(x, error, rest, bits, scale, TILE: tl.constexpr, MASKED: tl.constexpr):
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED) + loaded(error, i, rest, MASKED)
    positive = v >= 0
    stored(error, i, rest, finite(v - tl.where(positive, scale, -scale)), MASKED)
    inside = positive & (i < rest) if MASKED else positive
    j = tl.arange(0, TILE // 8)
    stored(bits, j, (rest + 7) // 8, packed(inside.to(tl.int32), TILE, 8), MASKED)


@triton.jit
def _keep_signs(x, error, place_0, place_1, place_2, sums, message, bits_at, TILE: tl.constexpr,
                LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Store error ← v - its sign times the scale, for v = x + error, and bits and scale in the message."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    error = pointed(error, number, LISTED, ALIGNED) + base
    scale = tl.div_rn(tl.load(sums + number), n.to(tl.float32))
    begin = message
    if LISTED:
        begin += tl.load(bits_at + number)
    if base == 0:
        put_number(begin + (n + 7) // 8, scale, True)
    if base + TILE <= n:
        _keep(x, error, n - base, begin + base // 8, scale, TILE, False)
    else:
        _keep(x, error, n - base, begin + base // 8, scale, TILE, True)


@dataclass(frozen=True)
class _Plan:
    """The layout that depends on lengths alone."""

    counts: tuple[int, ...]  # of blocks
    begins: Tensor  # of each tensor's sums
    bits_at: Tensor  # of its part of the message
    summed: Tiles
    kept: Tiles
    sums: int
    size: int  # of the message


@lru_cache(1024)
def _plan(lengths: tuple[int, ...], device: torch.device) -> _Plan:
    counts = tuple(-(-n // BLOCK) for n in lengths)
    at, begins = starts([-(-n // 8) + 4 for n in lengths]), table(starts(counts)[:-1], torch.int64, device)
    tiles = tiled(lengths, _SUMMED, device), tiled(lengths, _TILE, device)
    return _Plan(counts, begins, table(at[:-1], torch.int64, device), *tiles, sum(counts), at[-1])


def encode_signs(xs: Sequence[Tensor], errors: Sequence[Tensor]) -> Tensor:
    xs, errors = listed(xs), listed(errors)
    if not xs.plain or not errors.plain:
        return messages.encode_signs(reference, xs, errors)
    device, plan = xs[0].device, _plan(xs.lengths, xs[0].device)
    message = torch.empty(plan.size, dtype=torch.uint8, device=device)
    (given, aligned), (memory, aligned_too) = pointers(xs), pointers(errors)
    how = {"LISTED": len(xs) > 1, "ALIGNED": aligned and aligned_too, "enable_fp_fusion": False}
    sums, tiles = torch.empty(plan.sums, device=device), plan.summed
    _magnitudes[(tiles.count,)](given, memory, *tiles.place, sums, plan.begins, BLOCK, _SUMMED, **how, num_warps=1)
    sums, tiles = finished(sums, plan.counts), plan.kept
    _keep_signs[(tiles.count,)](given, memory, *tiles.place, sums, message, plan.bits_at, _TILE, **how, num_warps=4)
    return message

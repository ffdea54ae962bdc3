"""Walsh–Hadamard transforms of short blocks, for a list of vectors in one launch.

A warp takes a tile of many blocks through all stages in its registers: 8 bytes a value, 12 where the result is
subtracted from a memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.lists import destinations, halves_of, pointers, table, tiled
from laconic.kernels.gpu.means import begin_of
from laconic.kernels.gpu.rotation import stages, turned_by
from laconic.kernels.gpu.triton_helpers import finite, loaded, located, pointed, stored
from laconic.kernels.lists import listed
from laconic.kernels.reference.rotation import BLOCK_SIGNS, Turned

_TILE = 1024  # values that a warp holds, a multiple of all blocks up to it


@triton.jit
def _tile(x, out, rest, wanted, scale, share, low, high, TILE: tl.constexpr, STAGES: tl.constexpr,
          BEFORE: tl.constexpr, AFTER: tl.constexpr, SHARED: tl.constexpr, KEPT: tl.constexpr,
          MASKED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, TILE)
    v = loaded(x, i, rest, MASKED)
    if BEFORE:
        v = turned_by(v, i & ((1 << STAGES) - 1), low, high)
    v = stages(v, TILE, 1, STAGES, 0, 0) * scale
    if AFTER:
        v = turned_by(v, i & ((1 << STAGES) - 1), low, high)
    if SHARED:
        v *= share
    if KEPT:
        v = finite(loaded(out, i, wanted, MASKED) - v)
    stored(out, i, wanted, v, MASKED)


@triton.jit(do_not_specialize=["scale", "low", "high"])
def _blocks(x, out, begins, wanted, place_0, place_1, place_2, scale, shares, low, high, TILE: tl.constexpr,
            STAGES: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, SHARED: tl.constexpr, KEPT: tl.constexpr,
            LISTED: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    x = pointed(x, number, LISTED, ALIGNED) + base
    length = tl.full([], 0, tl.int64)
    if LISTED:
        out += begin_of(begins, number, EVEN)
        length += tl.load(wanted + number)
    else:
        length += wanted
    out += base
    share = 1.0
    if SHARED:
        share = tl.load(shares + number)
    if (base + TILE <= n) & (base + TILE <= length):
        _tile(
            x, out, n - base, length - base, scale, share, low, high, TILE, STAGES, BEFORE, AFTER, SHARED, KEPT, False
        )
    else:
        _tile(x, out, n - base, length - base, scale, share, low, high, TILE, STAGES, BEFORE, AFTER, SHARED, KEPT, True)


def hadamard_blocks(
    xs: Sequence[Tensor],
    lengths: Sequence[int],
    block: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
    rest: bool = False,
    turned: Turned = "",
) -> Sequence[Tensor]:
    xs = listed(xs)
    if block > _TILE or not xs.plain or not plain(*(out or ())):
        return reference.hadamard_blocks(xs, lengths, block, out, shares, rest, turned)
    device, lengths = xs[0].device, tuple(lengths)
    tiles, (given, aligned) = tiled(xs.lengths, _TILE, device), pointers(xs)
    room, begins, fours, found = destinations(lengths, out, device)
    if tiles.count:
        wanted = table(lengths, torch.int64, device) if tiles.listed else lengths[0]
        counted = begins if shares is None else table(tuple(shares), torch.float32, device)
        _blocks[(tiles.count,)](
            given, room, begins, wanted, *tiles.place, block**-0.5, counted, *halves_of(BLOCK_SIGNS), _TILE,
            block.bit_length() - 1, turned == "before", turned == "after", shares is not None, rest, tiles.listed,
            aligned, fours, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return found

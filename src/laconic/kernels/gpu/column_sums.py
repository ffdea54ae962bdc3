"""Two means for each column of a list of matrices: one pass over values, short ones over sums of blocks of rows.

A warp takes a block of rows of a few columns, adds up what is below zero and what is not in the order of
`columns_summed`, and counts. 8 bytes an element with a memory, and a fiftieth of that for sums of blocks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.gpu.column_lists import Layout, chosen, levels_of
from laconic.kernels.gpu.triton_helpers import block_summed, located, pointed, put_number
from laconic.kernels.lists import TensorList

_SIZE, _WIDEST, _WARPS = 2048, 32, 1  # elements that a program sums, and in how many columns at most


@triton.jit
def rows_of(x, i, inside, MASKED: tl.constexpr):
    """Load the elements of a tile, with zeros outside."""
    if MASKED:
        return tl.load(x + i, mask=inside, other=0)
    else:
        return tl.load(x + i)


@triton.jit
def _halved(x, GROUPS: tl.constexpr, HIGH: tl.constexpr, WIDTH: tl.constexpr):
    """The sum of so many rows in the order of `columns_summed`, for each column of each group; a column alone in the
    order of `sums`."""
    if WIDTH == 1:
        return tl.reshape(block_summed(tl.reshape(x, [GROUPS * HIGH]), GROUPS, HIGH), [GROUPS, 1])
    else:
        for k in tl.static_range(16):
            if (HIGH >> k) > 1:
                x = tl.sum(tl.reshape(x, [GROUPS, 2, (HIGH >> (k + 1)) * WIDTH]), axis=1)
        return tl.reshape(x, [GROUPS, WIDTH])


@triton.jit
def _partial(x, error, sums, room, counts, rows, columns, left, GROUPS: tl.constexpr, HIGH: tl.constexpr,
             WIDTH: tl.constexpr, FIRST: tl.constexpr, FED: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    """Sums below zero and from zero on, and how many those are: of values, or of such sums."""
    r, c = tl.arange(0, GROUPS * HIGH)[:, None], tl.arange(0, WIDTH)[None, :]
    i = r * (1 if WIDTH == 1 else columns) + c
    inside = (r < rows) & (c < left)
    if FIRST:
        v = rows_of(x, i, inside, MASKED)
        if FED:
            v += rows_of(error, i, inside, MASKED)
        low = tl.minimum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)
        high = tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)
        positive = v >= 0
        ones = (positive & inside if MASKED else positive).to(tl.int32)
    else:
        low, high = rows_of(sums, i, inside, MASKED), rows_of(sums + room, i, inside, MASKED)
        ones = rows_of(counts, i, inside, MASKED)
    ones = tl.sum(tl.reshape(ones, [GROUPS, HIGH, WIDTH]), axis=1)
    return _halved(low, GROUPS, HIGH, WIDTH), _halved(high, GROUPS, HIGH, WIDTH), ones


@triton.jit
def _divided(total, count):
    """A mean: no zero has a sign, and there is one nan."""
    mean = tl.div_rn(total + 0.0, tl.maximum(count, 1).to(tl.float32))
    return tl.where(mean == mean, mean, float("nan"))


@triton.jit(do_not_specialize=["place_2", "room", "fewer"])
def _summed(x, error, place_0, place_1, place_2, facts, sums, counts, room, out, out_counts, fewer, means, message,
            GROUPS: tl.constexpr, HIGH: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr, FED: tl.constexpr,
            LISTED: tl.constexpr, ALIGNED: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """A level of sums: of blocks of rows, or of blocks of sums. Where a column needs no further level, its means."""
    number, tile, _ = located(place_0, place_1, place_2, 1, LISTED)
    facts += 7 * number
    rows, columns = tl.load(facts), tl.load(facts + 1)
    if EVEN:
        columns = columns // 4 * 4  # that the compiler knows
    across = (columns + WIDTH - 1) // WIDTH
    row, column = tile // across * (GROUPS * HIGH), tile % across * WIDTH
    begin = row if WIDTH == 1 else row * columns + column
    if FIRST:
        x = pointed(x, number, LISTED, ALIGNED) + begin
        if FED:
            error = pointed(error, number, LISTED, ALIGNED) + begin
    else:
        before = tl.load(facts + 2)
        if EVEN:
            before, room = tl.multiple_of(before, 4), room // 4 * 4
        sums, counts = sums + before + begin, counts + before + begin
    below, left = rows - row, columns - column
    if (below >= GROUPS * HIGH) & (left >= WIDTH):
        low, high, ones = _partial(
            x, error, sums, room, counts, below, columns, left, GROUPS, HIGH, WIDTH, FIRST, FED, False
        )
    else:
        low, high, ones = _partial(
            x, error, sums, room, counts, below, columns, left, GROUPS, HIGH, WIDTH, FIRST, FED, True
        )
    block = row // HIGH + tl.arange(0, GROUPS)[:, None]
    c = column + tl.broadcast_to(tl.arange(0, WIDTH)[None, :], [GROUPS, WIDTH])
    there = (block * HIGH < rows) & (c < columns)
    if rows > HIGH:
        at = tl.load(facts + 3) + block * columns + c
        tl.store(out + at, low, mask=there)
        tl.store(out + fewer + at, high, mask=there)
        tl.store(out_counts + at, ones, mask=there)
    else:
        many = ones.to(tl.int64)
        few = tl.load(facts + 4) - many
        low, high = _divided(low, few), _divided(high, many)
        means += tl.load(facts + 5)
        tl.store(means + c, low, mask=there)
        tl.store(means + columns + c, high, mask=there)
        message += tl.load(facts + 6)
        put_number(message + 4 * c, low, there)
        put_number(message + 4 * (columns + c), high, there)


def find_means(xs: TensorList, errors: TensorList | None, layout: Layout, message: Tensor) -> Tensor:
    """Compute the means of all columns of all tensors, a tensor's lower ones before its upper ones, and write them into
    the message."""
    device = message.device
    means = torch.empty(layout.means_at[-1], device=device)
    for levels in levels_of(layout.shapes, _SIZE, _WIDEST, device):
        sums, counts, room = means, means, 0
        for level in levels:
            out = torch.empty(2 * level.room, device=device)
            out_counts = torch.empty(level.room, dtype=torch.int32, device=device)
            given, aligned = chosen(xs, level.members) if level.first else (sums, True)
            memory, aligned_too = chosen(errors, level.members) if level.first and errors else (given, aligned)
            _summed[(level.tiles.count,)](
                given, memory, *level.tiles.place, level.facts, sums, counts, room, out, out_counts, level.room, means,
                message, level.groups, level.high, level.width, level.first, level.first and errors is not None,
                level.tiles.listed, aligned and aligned_too, level.even, num_warps=_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
            sums, counts, room = out, out_counts, level.room
    return means

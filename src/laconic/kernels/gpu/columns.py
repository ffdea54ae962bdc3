"""One bit a value and two means a column at memory speed: error feedback + mean + pack.

Means need all of a column before its first error is known (`column_sums`): one pass reads both inputs, another reads
them again and writes errors and bits, 20.1 bytes an element. Matrices are processed in tiles of rows and columns, so
that a tile's means are read once; where a row does not fill whole bytes, or is short, elements look up their means one
by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import codes, reference
from laconic.kernels.gpu.column_lists import chosen, layout_of, tiles_of
from laconic.kernels.gpu.column_sums import find_means, rows_of
from laconic.kernels.gpu.eligibility import plain
from laconic.kernels.gpu.lists import tiled
from laconic.kernels.gpu.triton_helpers import finite, located, packed, pointed, stored
from laconic.kernels.lists import listed

_ROWS, _COLUMNS, _WARPS = 32, 128, 4  # of a tile
_TILE, _TILE_WARPS = 4096, 4  # where elements go in the order of memory


@triton.jit
def _keep(x, error, i, inside, low, high, FED: tl.constexpr, MASKED: tl.constexpr):
    """error ← v - its mean; whether v is from zero on."""
    v = rows_of(x, i, inside, MASKED)
    if FED:
        v += rows_of(error, i, inside, MASKED)
    positive = v >= 0
    if FED:
        kept = finite(v - tl.where(positive, high, low))
        if MASKED:
            tl.store(error + i, kept, mask=inside)
        else:
            tl.store(error + i, kept)
    return (positive & inside if MASKED else positive).to(tl.int32)


@triton.jit
def _keep_wide(x, error, bits, means, columns, rows, left, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
               FED: tl.constexpr, MASKED: tl.constexpr):  # fmt: skip
    r, c = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = (r < rows) & (c < left)
    if MASKED:
        low = tl.load(means + c, mask=c < left, other=0.0)
        high = tl.load(means + columns + c, mask=c < left, other=0.0)
    else:
        low, high = tl.load(means + c), tl.load(means + columns + c)
    packed_bits = packed(_keep(x, error, r * columns + c, inside, low, high, FED, MASKED), ROWS * COLUMNS, 8)
    b = tl.arange(0, COLUMNS // 8)[None, :]
    at = bits + r * (columns // 8) + b
    packed_bits = tl.reshape(packed_bits, [ROWS, COLUMNS // 8])
    if MASKED:
        tl.store(at, packed_bits, mask=(r < rows) & (8 * b < left))
    else:
        tl.store(at, packed_bits)


@triton.jit(do_not_specialize=["place_2"])
def _keep_columns(x, error, place_0, place_1, place_2, facts, means, message, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                  FED: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Process tiles of rows and columns, where a row fills whole bytes."""
    number, tile, _ = located(place_0, place_1, place_2, 1, LISTED)
    facts += 5 * number
    rows, columns = tl.load(facts), tl.load(facts + 1) // 8 * 8
    across = (columns + COLUMNS - 1) // COLUMNS
    row, column = tile // across * ROWS, tile % across * COLUMNS
    begin = row * columns + column
    x = pointed(x, number, LISTED, ALIGNED) + begin
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + begin
    means += tl.multiple_of(tl.load(facts + 2), 4) + column
    bits = message + tl.load(facts + 3) + begin // 8
    rows, left = rows - row, columns - column
    if (rows >= ROWS) & (left >= COLUMNS):
        _keep_wide(x, error, bits, means, columns, rows, left, ROWS, COLUMNS, FED, False)
    else:
        _keep_wide(x, error, bits, means, columns, rows, left, ROWS, COLUMNS, FED, True)


@triton.jit
def _columns_at(base, columns, TILE: tl.constexpr):
    """Return the columns of the elements from here on. Dividing is slow: where rows are long, one step back does."""
    at = (base % columns).to(tl.int32) + tl.arange(0, TILE)
    columns = columns.to(tl.int32)
    if columns >= TILE:
        at = tl.where(at >= columns, at - columns, at)
    else:
        at = at % columns
    return at


@triton.jit
def _keep_flat(x, error, bits, means, rest, base, columns, TILE: tl.constexpr, FED: tl.constexpr, ALONE: tl.constexpr,
               MASKED: tl.constexpr):  # fmt: skip
    i = tl.arange(0, TILE)
    if not FED:
        low, high = 0.0, 0.0
    elif ALONE:
        low, high = tl.load(means), tl.load(means + 1)
    else:
        at = means + _columns_at(base, columns, TILE)
        low, high = tl.load(at), tl.load(at + columns)
    packed_bits = packed(_keep(x, error, i, i < rest, low, high, FED, MASKED), TILE, 8)
    stored(bits, tl.arange(0, TILE // 8), (rest + 7) // 8, packed_bits, MASKED)


@triton.jit(do_not_specialize=["place_2"])
def _keep_elements(x, error, place_0, place_1, place_2, facts, means, message, TILE: tl.constexpr, FED: tl.constexpr,
                   ALONE: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr):  # fmt: skip
    """Process elements in the order of memory."""
    number, base, n = located(place_0, place_1, place_2, TILE, LISTED)
    facts += 5 * number
    columns = tl.load(facts + 1)
    x = pointed(x, number, LISTED, ALIGNED) + base
    if FED:
        error = pointed(error, number, LISTED, ALIGNED) + base
    means += tl.load(facts + 2)
    bits = message + tl.load(facts + 3) + base // 8
    if base + TILE <= n:
        _keep_flat(x, error, bits, means, n - base, base, columns, TILE, FED, ALONE, False)
    else:
        _keep_flat(x, error, bits, means, n - base, base, columns, TILE, FED, ALONE, True)


def encode_columns(xs: Sequence[Tensor], errors: Sequence[Tensor] | None, columns: Sequence[int]) -> Tensor:
    if not plain(*xs, *(errors or ())):
        return codes.encode_columns(reference, xs, errors, columns)
    xs, memories, device = listed(xs), None if errors is None else listed(errors), xs[0].device
    layout = layout_of(tuple((n // width, width) for n, width in zip(xs.lengths, columns, strict=True)), device)
    message = torch.empty(layout.parts_at[-1], dtype=torch.uint8, device=device)
    means = find_means(xs, memories, layout, message)
    for kind in layout.kinds:
        given, aligned = chosen(xs, kind.members)
        memory, aligned_too = chosen(memories or xs, kind.members)
        how = {"FED": memories is not None, "LISTED": len(kind.members) > 1, "ALIGNED": aligned and aligned_too}
        if kind.name == "wide":
            tiles = tiles_of(tuple(layout.shapes[t] for t in kind.members), _ROWS, _COLUMNS, device)
            _keep_columns[(tiles.count,)](
                given, memory, *tiles.place, kind.facts, means, message, _ROWS, _COLUMNS, **how,
                num_warps=_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
        else:
            tiles = tiled(tuple(xs.lengths[t] for t in kind.members), _TILE, device)
            _keep_elements[(tiles.count,)](
                given, memory, *tiles.place, kind.facts, means, message, _TILE, ALONE=kind.name == "alone", **how,
                num_warps=_TILE_WARPS, enable_fp_fusion=False,
            )  # fmt: skip
    return message

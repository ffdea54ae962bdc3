"""Lists of matrices whose columns have two means each: the layout of messages and tables, and which matrices share a
launch.

The layout depends on shapes alone, and is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from laconic.kernels.gpu.lists import Tiles, pointers, starts, table, tiled
from laconic.kernels.lists import TensorList
from laconic.kernels.reference.columns import HEIGHT
from laconic.kernels.sums import BLOCK

WIDE = 128
"""The number of columns from which on matrices are processed in tiles of rows and columns, if a row fills whole
bytes."""
Shapes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Level:
    """Sums of blocks of rows for matrices that have tiles of one kind, over values or over the sums of another
    level."""

    members: tuple[int, ...]
    facts: Tensor
    """For each matrix: its rows at this level, its columns, where its sums begin here and in the next level, the rows
    of the matrix, and where its means begin in the table of all and in the message."""
    room: int
    """The number of sums that the next level begins with."""
    tiles: Tiles
    groups: int
    high: int
    width: int
    first: bool
    even: bool
    """Whether rows are multiples of 16 bytes."""


@dataclass(frozen=True)
class Kind:
    """Matrices whose bits are packed or unpacked in one launch."""

    name: str
    members: tuple[int, ...]
    facts: Tensor
    """For each matrix: rows, columns, and where it begins in the table of means, in the message and in the result."""


@dataclass(frozen=True)
class Layout:
    """The layout of a list of matrices: where each part of a message and of the table of means begins."""

    shapes: Shapes
    bits: tuple[int, ...]
    parts_at: tuple[int, ...]
    means_at: tuple[int, ...]
    kinds: tuple[Kind, ...]


@lru_cache(256)
def layout_of(shapes: Shapes, device: torch.device) -> Layout:
    """Return the layout of matrices of these shapes."""
    bits = tuple(-(-rows * columns // 8) for rows, columns in shapes)
    parts_at = starts([size + 8 * columns for size, (_, columns) in zip(bits, shapes, strict=True)])
    means_at = starts([-(-columns // 2) * 4 for _, columns in shapes])
    begins = starts([-(-rows * columns // 4) * 4 for rows, columns in shapes])  # as `outputs` does
    kinds = []
    for name in sorted({kind_of(columns) for _, columns in shapes}):
        members = tuple(t for t, (_, columns) in enumerate(shapes) if kind_of(columns) == name)
        facts = [number for t in members for number in (*shapes[t], means_at[t], parts_at[t], begins[t])]
        kinds.append(Kind(name, members, table(tuple(facts), torch.int64, device)))
    return Layout(shapes, bits, parts_at, means_at, tuple(kinds))


def kind_of(columns: int) -> str:
    """Return the kind of a matrix: one column, many that fill whole bytes, or any others, whose elements look up their
    means one by one."""
    return "alone" if columns == 1 else "wide" if columns % 8 == 0 and columns >= WIDE else "any"


@lru_cache(256)
def tiles_of(shapes: Shapes, rows: int, columns: int, device: torch.device) -> Tiles:
    """Return tiles of so many rows and columns, in row order."""
    return tiled(tuple(-(-r // rows) * -(-c // columns) for r, c in shapes), 1, device)


@lru_cache(256)
def levels_of(shapes: Shapes, size: int, widest: int, device: torch.device) -> tuple[tuple[Level, ...], ...]:
    """Return the levels of sums for each kind of tile, of about `size` elements and at most `widest` columns."""
    layout, found = layout_of(shapes, device), []
    for width in sorted({_width(columns, widest) for _, columns in shapes}):
        high = BLOCK if width == 1 else HEIGHT
        groups = max(1, size // (high * width))
        members = tuple(t for t, (_, columns) in enumerate(shapes) if _width(columns, widest) == width)
        levels: list[Level] = []
        heights, begins = [shapes[t][0] for t in members], (0,) * len(members)
        while members:
            fewer = [-(-rows // high) for rows in heights]
            ends = starts([f * shapes[t][1] if f > 1 else 0 for f, t in zip(fewer, members, strict=True)])
            facts = [
                (rows, shapes[t][1], begin, end, shapes[t][0], layout.means_at[t], layout.parts_at[t] + layout.bits[t])
                for t, rows, begin, end in zip(members, heights, begins, ends, strict=False)
            ]
            here = tuple((rows, shapes[t][1]) for rows, t in zip(heights, members, strict=True))
            levels.append(
                Level(
                    members,
                    table(tuple(number for each in facts for number in each), torch.int64, device),
                    ends[-1],
                    tiles_of(here, groups * high, width, device),
                    groups,
                    high,
                    width,
                    not levels,
                    not any(shapes[t][1] % 4 for t in members),
                )
            )
            left = [k for k, f in enumerate(fewer) if f > 1]
            members, begins = tuple(members[k] for k in left), tuple(ends[k] for k in left)
            heights = [fewer[k] for k in left]
        found.append(tuple(levels))
    return tuple(found)


def _width(columns: int, widest: int) -> int:
    """Return the columns of a tile: one, or a power of two."""
    return 1 if columns == 1 else min(widest, max(4, 1 << (columns - 1).bit_length()))


def chosen(xs: TensorList, members: tuple[int, ...]) -> tuple[Any, bool]:
    """Return the `pointers` of some of these tensors."""
    if len(members) == len(xs) or len(members) == 1:
        return pointers(xs if len(members) == len(xs) else [xs[members[0]]])
    places = tuple(xs.places[t] for t in members)
    return table(places, torch.int64, xs[0].device), not any(place % 16 for place in places)

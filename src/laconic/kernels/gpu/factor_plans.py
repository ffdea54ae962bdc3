"""Plans of products with thin factors for a list of matrices: which program has which part, and sums of spans.

A product keeps one side of its matrix and sums over the other. A program has a block of the first and a span of the
second; so that there are enough programs, the second is cut into spans, and a small launch adds their sums in a fixed
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels.gpu.lists import starts, table, tiled
from laconic.kernels.gpu.triton_helpers import located

_LONGEST = 4096  # the longest span
_ADDED, _AT_ONCE = 64, 64  # rows of a product, and columns of its sums of spans, that are added at once
_FACTS = tl.constexpr(9)


@triton.jit
def fact(facts, number, k: tl.constexpr):
    """Return the k-th fact of a matrix: its rows, its columns, those of its factor; its first program, its spans, how
    long these are; where its sums begin, where its product does, and where its factor does."""
    return tl.load(facts + number * _FACTS + k)


@triton.jit
def place(numbers, facts, LISTED: tl.constexpr):
    """Return this program's matrix number, which block of the product it has, and which span."""
    program = tl.program_id(0)
    number = tl.full([], 0, tl.int32)
    if LISTED:
        number = tl.load(numbers + program)
    local = program - fact(facts, number, 3).to(tl.int32)
    spans = fact(facts, number, 4).to(tl.int32)
    return number, local // spans, local % spans


@triton.jit
def keep(room, facts, number, span, i, side, c, r, sums, R: tl.constexpr, WHOLE: tl.constexpr):
    """Store sums [R, i] in the product itself, rows of r, or where sums of spans lie, R rows of a side each."""
    inside = (i < side)[None, :] & (c < r)[:, None]
    if WHOLE:
        at = room + fact(facts, number, 7) + i[None, :] * r + c[:, None]
    else:
        at = room + fact(facts, number, 6) + (span * R + c).to(tl.int64)[:, None] * side + i[None, :]
    tl.store(at, sums, mask=inside)


@triton.jit
def _added(sums, facts, place_0, place_1, place_2, product, R: tl.constexpr, BLOCK: tl.constexpr,
           SPANS: tl.constexpr, LISTED: tl.constexpr):  # fmt: skip
    """Add the sums of spans, several at once."""
    number, base, side = located(place_0, place_1, place_2, BLOCK, LISTED)
    r, spans = fact(facts, number, 2), fact(facts, number, 4).to(tl.int32)
    i, c, s = base + tl.arange(0, BLOCK), tl.arange(0, R), tl.arange(0, SPANS)
    inside = (i < side)[None, :] & (c < r)[:, None]
    at = (
        sums + fact(facts, number, 6) + (s[:, None, None] * R + c[None, :, None]).to(tl.int64) * side + i[None, None, :]
    )
    whole = tl.zeros([R, BLOCK], tl.float32)
    for first in range(0, spans, SPANS):
        here = (first + s < spans)[:, None, None] & inside[None, :, :]
        whole += tl.sum(tl.load(at + first * R * side, mask=here, other=0.0), axis=0)
    tl.store(product + fact(facts, number, 7) + i[None, :] * r + c[:, None], whole, mask=inside)


@triton.jit
def factor_at(factors, facts, number, FOURS: tl.constexpr):
    """Return where a matrix's factor begins, of factors that lie one behind another."""
    begin = fact(facts, number, 8)
    return factors + (tl.multiple_of(begin, 4) if FOURS else begin)


@dataclass(frozen=True)
class Plan:
    """The plan of the products of matrices of some shapes: tables, and how much room they take."""

    numbers: Any
    facts: Tensor
    programs: int
    sums: int
    """The room for the sums of spans; 0 if no matrix is cut."""
    sides: tuple[int, ...]
    fours: bool
    """Whether all factors begin at a multiple of four elements."""


@lru_cache(1024)
def planned(
    shapes: tuple[tuple[int, int, int], ...],
    axis: int,
    block: int,
    least: int,
    programs: int,
    columns: int,
    device: torch.device,
) -> Plan:
    """Return the plan for shapes (rows, columns, factor's columns): blocks of the side that the product keeps, spans of
    the other, no shorter than `least` and only as long as leaves so many programs; sums of spans have `columns`."""
    sides, ways = [s[axis] for s in shapes], [s[1 - axis] for s in shapes]
    blocks, span = [-(-side // block) for side in sides], _LONGEST
    while span > least and sum(b * -(-way // span) for b, way in zip(blocks, ways, strict=True)) < programs:
        span //= 2
    spans = [-(-way // span) for way in ways]
    counts = [b * s for b, s in zip(blocks, spans, strict=True)]
    room = starts([columns * side * s for side, s in zip(sides, spans, strict=True)])
    begins = starts([side * r for side, (_, _, r) in zip(sides, shapes, strict=True)])
    given = starts([way * r for way, (_, _, r) in zip(ways, shapes, strict=True)])
    rows = zip(shapes, starts(counts), spans, room, begins, given, strict=False)
    facts = [(*shape, first, s, span, sums, begin, from_) for shape, first, s, sums, begin, from_ in rows]
    return Plan(
        torch.repeat_interleave(torch.tensor(counts)).to(device=device, dtype=torch.int32) if len(shapes) > 1 else 0,
        table(tuple(number for each in facts for number in each), torch.int64, device),
        sum(counts),
        room[-1] if max(spans) > 1 else 0,
        tuple(sides),
        not any(begin % 4 for begin in given),
    )


def padded(shapes: Sequence[tuple[int, int, int]], least: int = 1) -> int:
    """Return the smallest power of two that holds the columns of all factors, and is no less than `least`."""
    return max(least, 1 << (max(r for _, _, r in shapes) - 1).bit_length())


def add_spans(sums: Tensor, plan: Plan, product: Tensor, columns: int) -> None:
    """Add the sums of spans, whose rows have so many columns, to the products."""
    tiles, spans = tiled(plan.sides, _ADDED, product.device), min(8, max(2, _AT_ONCE // columns))
    _added[(tiles.count,)](sums, plan.facts, *tiles.place, product, columns, _ADDED, spans, LISTED=len(plan.sides) > 1)

"""Products of matrices with thin factors: each reads its matrix once, 4 bytes an element, for a list in one launch.

A program keeps sums for all columns of the factor in registers while it runs along rows (M·Q) or down columns (M'·P),
with the next pieces being copied to shared memory. So that there are enough programs, long rows or columns are cut into
spans; a second, small launch adds their sums. All is float32, never shorter; a product and its sum are rounded once
(fused). Sums have a fixed order, which is not torch's: equal inputs that begin at like places give equal bits, as near
to the exact product as torch's are.
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

from laconic.kernels import reference
from laconic.kernels.gpu.lists import outputs, pointers, starts, tiled, views
from laconic.kernels.gpu.triton_helpers import located, pointed

_LEFT, _RIGHT = 4, 8  # columns of a factor up to which these products are faster than torch's
_WARPS = 4  # warps of a program
_PROGRAMS = 1024  # programs that a launch should have
_LONGEST = 4096  # the longest span
_ROWS = 32  # rows of a matrix that a program of M·Q has
_STEP = 64  # columns that it reads at once
_COLUMNS = 512  # columns that a program of M'·P has
_AT_ONCE = 4  # rows that it reads at once
_STAGES = 4  # pipeline stages: reads in flight, plus one
_ADDED, _SPANS = 64, 8  # rows of a product, and sums of each, that are added at once
_FACTS = tl.constexpr(8)


@triton.jit
def fact(facts, number, k: tl.constexpr):
    """Return the k-th fact of a matrix: its rows, its columns, those of its factor; its first program, its spans, how
    long these are; where its sums begin, and where its product does."""
    return tl.load(facts + number * _FACTS + k)


@triton.jit
def _place(numbers, facts, LISTED: tl.constexpr):
    """Return this program's matrix number, which block of the product it has, and which span."""
    program = tl.program_id(0)
    number = tl.full([], 0, tl.int32)
    if LISTED:
        number = tl.load(numbers + program)
    local = program - fact(facts, number, 3).to(tl.int32)
    spans = fact(facts, number, 4).to(tl.int32)
    return number, local // spans, local % spans


@triton.jit
def _keep(room, facts, number, span, i, side, c, r, sums, R: tl.constexpr, WHOLE: tl.constexpr):
    """Store sums [R, i] in the product itself, rows of r, or where sums of spans lie, R rows of a side each."""
    inside = (i < side)[None, :] & (c < r)[:, None]
    if WHOLE:
        at = room + fact(facts, number, 7) + i[None, :] * r + c[:, None]
    else:
        at = room + fact(facts, number, 6) + (span * R + c).to(tl.int64)[:, None] * side + i[None, :]
    tl.store(at, sums, mask=inside)


@triton.jit
def _along(m_at, q_at, r, count, R: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    sums = tl.zeros([R, ROWS, STEP], tl.float32)
    whole = count // STEP * STEP
    for k in tl.range(0, whole, STEP, num_stages=STAGES):
        sums += tl.load(m_at + k) * tl.trans(tl.load(q_at + k * r))[:, None, :]
    if whole < count:
        inside = tl.arange(0, STEP) < count - whole
        q = tl.load(q_at + whole * r, mask=inside[:, None], other=0.0)
        sums += tl.load(m_at + whole, mask=inside[None, None, :], other=0.0) * tl.trans(q)[:, None, :]
    return tl.sum(sums, axis=2)


@triton.jit
def _left(matrices, factors, numbers, facts, room, R: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
          LISTED: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
          STEP: tl.constexpr):  # fmt: skip
    """Compute M·Q for some rows along one span of columns. Missing rows and columns of a factor are read as the last
    ones, and not kept."""
    number, block, span = _place(numbers, facts, LISTED)
    n, m, r = fact(facts, number, 0), fact(facts, number, 1), fact(facts, number, 2).to(tl.int32)
    longest = fact(facts, number, 5)
    c, j = tl.arange(0, R), tl.arange(0, STEP)
    column = tl.minimum(c, r - 1)
    if EXACT:
        r = R
        column = c
    begin = span * longest
    i = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(i, n - 1)[None, :, None]
    matrix = pointed(matrices, number, LISTED, ALIGNED)
    q_at = pointed(factors, number, LISTED, ALIGNED) + begin * r + j[:, None] * r + column[None, :]
    count = tl.minimum(longest, m - begin).to(tl.int32)
    if ALIGNED and m % 4 == 0:  # read in fours, which the compiler must be shown
        m_at = matrix + begin // 4 * 4 + row * (m // 4 * 4) + j[None, None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    else:
        m_at = matrix + begin + row * m + j[None, None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    _keep(room, facts, number, span, i, n, c, r, sums, R, WHOLE)


@triton.jit
def _down(m_at, p_at, m, r, count, R: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr,
          STAGES: tl.constexpr):  # fmt: skip
    sums = tl.zeros([R, COLUMNS], tl.float32)
    whole = count // AT_ONCE * AT_ONCE
    for i in tl.range(0, whole, AT_ONCE, num_stages=STAGES):
        for u in tl.static_range(AT_ONCE):
            sums += tl.load(m_at + (i + u) * m) * tl.load(p_at + (i + u) * r)
    for i in range(whole, count):
        sums += tl.load(m_at + i * m) * tl.load(p_at + i * r)
    return sums


@triton.jit
def _right(matrices, factors, numbers, facts, room, R: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
           LISTED: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr, COLUMNS: tl.constexpr,
           AT_ONCE: tl.constexpr):  # fmt: skip
    """Compute M'·P for some columns down one span of rows, four to a thread."""
    number, block, span = _place(numbers, facts, LISTED)
    n, m, r = fact(facts, number, 0), fact(facts, number, 1), fact(facts, number, 2).to(tl.int32)
    longest = fact(facts, number, 5)
    c = tl.arange(0, R)
    column = tl.minimum(c, r - 1)
    if EXACT:
        r = R
        column = c
    begin = span * longest
    matrix = pointed(matrices, number, LISTED, ALIGNED)
    p_at = pointed(factors, number, LISTED, ALIGNED) + begin * r + column[:, None]
    count = tl.minimum(longest, n - begin).to(tl.int32)
    first, k = block.to(tl.int64) * COLUMNS, tl.arange(0, COLUMNS)
    if ALIGNED and m % 4 == 0 and first + COLUMNS <= m:
        fours = m // 4 * 4
        m_at = matrix + (begin * fours + first) + k[None, :]
        sums = _down(m_at, p_at, fours, r, count, R, COLUMNS, AT_ONCE, STAGES)
    else:
        m_at = matrix + begin * m + tl.minimum(first + k, m - 1)[None, :]
        sums = _down(m_at, p_at, m, r, count, R, COLUMNS, AT_ONCE, STAGES)
    _keep(room, facts, number, span, first + k, m, c, r, sums, R, WHOLE)


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


@dataclass(frozen=True)
class _Plan:
    """The plan of the products of matrices of some shapes: tables, and how much room they take."""

    numbers: Any
    facts: Tensor
    programs: int
    sums: int
    """The room for the sums of spans; 0 if no matrix is cut."""
    lengths: tuple[int, ...]
    sides: tuple[int, ...]


@lru_cache(1024)
def _planned(
    shapes: tuple[tuple[int, int, int], ...], axis: int, block: int, least: int, device: torch.device
) -> _Plan:
    """Return the plan for shapes (rows, columns, factor's columns): blocks of the side that the product keeps, spans of
    the other."""
    padded, sides, ways = _padded(shapes), [s[axis] for s in shapes], [s[1 - axis] for s in shapes]
    blocks, span = [-(-side // block) for side in sides], _LONGEST
    while span > least and sum(b * -(-way // span) for b, way in zip(blocks, ways, strict=True)) < _PROGRAMS:
        span //= 2
    spans = [-(-way // span) for way in ways]
    counts = [b * s for b, s in zip(blocks, spans, strict=True)]
    room = starts([padded * side * s for side, s in zip(sides, spans, strict=True)])
    lengths = tuple(side * r for side, (_, _, r) in zip(sides, shapes, strict=True))
    begins = starts([-(-n // 4) * 4 for n in lengths])  # as `outputs` has them
    rows = zip(shapes, starts(counts), spans, room, begins, strict=False)
    facts = [(*shape, first, s, span, sums, begin) for shape, first, s, sums, begin in rows]
    return _Plan(
        torch.repeat_interleave(torch.tensor(counts)).to(device=device, dtype=torch.int32) if len(shapes) > 1 else 0,
        torch.tensor(facts, dtype=torch.int64, device=device),
        sum(counts),
        room[-1] if max(spans) > 1 else 0,
        lengths,
        tuple(sides),
    )


def _padded(shapes: Sequence[tuple[int, int, int]]) -> int:
    """Return the smallest power of two that holds the columns of all factors."""
    return 1 << (max(r for _, _, r in shapes) - 1).bit_length()


def _products(
    matrices: Sequence[Tensor], factors: Sequence[Tensor], axis: int, kernel: Any, block: int, least: int, **how: int
) -> list[Tensor]:
    device = matrices[0].device
    shapes = tuple((*matrix.shape, factor.shape[1]) for matrix, factor in zip(matrices, factors, strict=True))
    padded, exact, listed = _padded(shapes), len({r for _, _, r in shapes} | {_padded(shapes)}) == 1, len(shapes) > 1
    plan = _planned(shapes, axis, block, least, device)
    product, _ = outputs(plan.lengths, device)
    sums = torch.empty(plan.sums, device=device) if plan.sums else product
    (given, aligned), (thin, aligned_too) = pointers(matrices), pointers(factors)
    kernel[(plan.programs,)](
        given, thin, plan.numbers, plan.facts, sums, padded, exact, _STAGES, LISTED=listed,
        ALIGNED=aligned and aligned_too, WHOLE=not plan.sums, num_warps=_WARPS, **how,
    )  # fmt: skip
    if plan.sums:
        tiles = tiled(plan.sides, _ADDED, device)
        _added[(tiles.count,)](sums, plan.facts, *tiles.place, product, padded, _ADDED, _SPANS, LISTED=listed)
    return [values.view(side, -1) for values, side in zip(views(product, plan.lengths), plan.sides, strict=True)]


def suits(factors: Sequence[Tensor], most: int, *others: Tensor) -> bool:
    """Tell whether bodies for factors of at most `most` columns take these."""
    return all(f.dim() == 2 and f.shape[1] <= most for f in factors) and all(
        x.dtype == torch.float32 and x.is_contiguous() and x.numel() for x in (*factors, *others)
    )


def left_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor]:
    if not suits(factors, _LEFT, *matrices):
        return reference.left_products(matrices, factors)
    return _products(matrices, factors, 0, _left, _ROWS, 4 * _STEP, ROWS=_ROWS, STEP=_STEP)


def right_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor]:
    if not suits(factors, _RIGHT, *matrices):
        return reference.right_products(matrices, factors)
    return _products(matrices, factors, 1, _right, _COLUMNS, 64, COLUMNS=_COLUMNS, AT_ONCE=_AT_ONCE)

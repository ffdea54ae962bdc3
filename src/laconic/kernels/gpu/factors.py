"""Products of matrices with thin factors: each reads its matrix once, 4 bytes an element, for a list in one launch.

Of few columns, a program keeps sums for all of them in registers while it runs along rows (M·Q) or down columns (M'·P),
with the next pieces being copied to shared memory; of more, see `wide_factors`. A second, small launch adds the sums of
spans (`factor_plans`). All is float32; a product and its sum are rounded once (fused). Sums have a fixed order, which
is not torch's: equal inputs that begin at like places give equal bits, as near to the exact product as torch's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu import wide_factors as wide
from laconic.kernels.gpu.factor_plans import add_spans, fact, factor_at, keep, padded, place, planned
from laconic.kernels.gpu.lists import pointers
from laconic.kernels.gpu.triton_helpers import pointed
from laconic.kernels.lists import Packed, TensorList, packed, room_for

LEFT, RIGHT = 4, 8  # columns of a factor up to which the bodies here are faster than those for more of them
_WARPS = 4  # warps of a program
_PROGRAMS = 1024  # programs that a launch should have
_ROWS = 32  # rows of a matrix that a program of M·Q has
_STEP = 64  # columns that it reads at once
_COLUMNS = 512  # columns that a program of M'·P has
_AT_ONCE = 4  # rows that it reads at once
_STAGES = 4  # pipeline stages: reads in flight, plus one


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
          LISTED: tl.constexpr, ALIGNED: tl.constexpr, FOURS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
          STEP: tl.constexpr):  # fmt: skip
    """Compute M·Q for some rows along one span of columns. Missing rows and columns of a factor are read as the last
    ones, and not kept."""
    number, block, span = place(numbers, facts, LISTED)
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
    q_at = factor_at(factors, facts, number, FOURS) + begin * r + j[:, None] * r + column[None, :]
    count = tl.minimum(longest, m - begin).to(tl.int32)
    if ALIGNED and m % 4 == 0:  # read in fours, which the compiler must be shown
        m_at = matrix + begin // 4 * 4 + row * (m // 4 * 4) + j[None, None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    else:
        m_at = matrix + begin + row * m + j[None, None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    keep(room, facts, number, span, i, n, c, r, sums, R, WHOLE)


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
           LISTED: tl.constexpr, ALIGNED: tl.constexpr, FOURS: tl.constexpr, WHOLE: tl.constexpr,
           COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr):  # fmt: skip
    """Compute M'·P for some columns down one span of rows, four to a thread."""
    number, block, span = place(numbers, facts, LISTED)
    n, m, r = fact(facts, number, 0), fact(facts, number, 1), fact(facts, number, 2).to(tl.int32)
    longest = fact(facts, number, 5)
    c = tl.arange(0, R)
    column = tl.minimum(c, r - 1)
    if EXACT:
        r = R
        column = c
    begin = span * longest
    matrix = pointed(matrices, number, LISTED, ALIGNED)
    p_at = factor_at(factors, facts, number, FOURS) + begin * r + column[:, None]
    count = tl.minimum(longest, n - begin).to(tl.int32)
    first, k = block.to(tl.int64) * COLUMNS, tl.arange(0, COLUMNS)
    if ALIGNED and m % 4 == 0 and first + COLUMNS <= m:
        fours = m // 4 * 4
        m_at = matrix + (begin * fours + first) + k[None, :]
        sums = _down(m_at, p_at, fours, r, count, R, COLUMNS, AT_ONCE, STAGES)
    else:
        m_at = matrix + begin * m + tl.minimum(first + k, m - 1)[None, :]
        sums = _down(m_at, p_at, m, r, count, R, COLUMNS, AT_ONCE, STAGES)
    keep(room, facts, number, span, first + k, m, c, r, sums, R, WHOLE)


def suits(factors: Sequence[Tensor], most: int, *others: Tensor) -> bool:
    """Tell whether bodies for factors of at most `most` columns take these."""
    given = (factors.flat,) if isinstance(factors, Packed) else tuple(factors)
    shapes = factors.shapes if isinstance(factors, Packed) else tuple(f.shape for f in factors)
    return all(len(shape) == 2 and shape[1] <= most for shape in shapes) and all(
        x.dtype == torch.float32 and x.is_contiguous() and x.numel() for x in (*given, *others)
    )


def left_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    if not suits(factors, wide.MOST, *unchecked(matrices)):
        return reference.left_products(matrices, factors)
    thin = packed(factors)
    if max(r for _, r in thin.shapes) > LEFT:
        how = {"ROWS": wide.ROWS, "STEP": wide.LEFT_STEP, "STAGES": wide.STAGES, "num_warps": wide.LEFT_WARPS}
        return _products(matrices, thin, 0, wide.left, wide.LEAST, wide.ROWS, wide.LEFT_STEP, wide.LEFT_PROGRAMS, how)
    how = {"ROWS": _ROWS, "STEP": _STEP, "STAGES": _STAGES, "num_warps": _WARPS}
    return _products(matrices, thin, 0, _left, 1, _ROWS, 4 * _STEP, _PROGRAMS, how)


def right_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    if not suits(factors, wide.MOST, *unchecked(matrices)):
        return reference.right_products(matrices, factors)
    thin = packed(factors)
    if max(r for _, r in thin.shapes) > RIGHT:
        how = {"COLUMNS": wide.COLUMNS, "STEP": wide.RIGHT_STEP, "STAGES": wide.STAGES, "num_warps": wide.RIGHT_WARPS}
        size = (wide.LEAST, wide.COLUMNS, wide.RIGHT_STEP, wide.RIGHT_PROGRAMS)
        return _products(matrices, thin, 1, wide.right, *size, how)
    how = {"COLUMNS": _COLUMNS, "AT_ONCE": _AT_ONCE, "STAGES": _STAGES, "num_warps": _WARPS}
    return _products(matrices, thin, 1, _right, 1, _COLUMNS, 64, _PROGRAMS, how)


def unchecked(matrices: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the matrices of which nothing is known yet: those of a list that stays are looked at once."""
    return () if isinstance(matrices, TensorList) and matrices.plain and all(matrices.lengths) else matrices


def _products(
    matrices: Sequence[Tensor], factors: Packed, axis: int, kernel: Any, least: int, block: int, shortest: int,
    programs: int, how: dict[str, int],
) -> Packed:  # fmt: skip
    shapes = tuple((*matrix.shape, r) for matrix, (_, r) in zip(matrices, factors.shapes, strict=True))
    columns = padded(shapes, least)
    plan = planned(shapes, axis, block, shortest, programs, columns, matrices[0].device)
    product = room_for([(shape[axis], shape[2]) for shape in shapes], factors.flat)
    sums = factors.flat.new_empty(plan.sums) if plan.sums else product.flat
    given, aligned = pointers(matrices)
    kernel[(plan.programs,)](
        given, factors.flat, plan.numbers, plan.facts, sums, columns, {columns} == {r for _, _, r in shapes},
        LISTED=len(shapes) > 1, ALIGNED=aligned, FOURS=plan.fours, WHOLE=not plan.sums, **how,
    )  # fmt: skip
    if plan.sums:
        add_spans(sums, plan, product.flat, columns)
    return product

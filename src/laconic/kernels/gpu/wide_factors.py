"""Products of matrices with factors of more than a few columns, on tensor cores: memory speed up to rank 32 and above.

A float32 is the sum of two shorter numbers to nearly all of its digits, and three products of these (tf32x3) make one
that is as near to the exact one as float32's: what is short is never a result. Missing columns of a factor are read as
the last one, and not kept. Programs have fewer than the four warps, or fewer than the 64 rows on the left of a product,
with which Triton would take Hopper's instructions for whole warp groups: these read both sides from shared memory, and
that is twice as slow here (measured).
"""

from __future__ import annotations

import triton
import triton.language as tl

from laconic.kernels.gpu.factor_plans import fact, factor_at, keep, place
from laconic.kernels.gpu.triton_helpers import pointed

MOST = 64  # columns of a factor that these take
LEAST = 16  # columns that tensor cores multiply at least
ROWS, LEFT_STEP, LEFT_WARPS = 64, 32, 2  # rows of a matrix that a program of M·Q has, columns that it reads at once
COLUMNS, RIGHT_STEP, RIGHT_WARPS = 128, 32, 4  # columns of a matrix that a program of M'·P has, rows it reads at once
STAGES = 3
LEFT_PROGRAMS, RIGHT_PROGRAMS = 384, 192  # programs a launch should have: enough to read fast, with spans still long


@triton.jit
def _along(m_at, q_at, r, count, R: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    sums = tl.zeros([ROWS, R], tl.float32)
    whole = count // STEP * STEP
    for k in tl.range(0, whole, STEP, num_stages=STAGES):
        sums = tl.dot(tl.load(m_at + k), tl.load(q_at + k * r), sums, input_precision="tf32x3")
    if whole < count:
        inside = tl.arange(0, STEP) < count - whole
        matrix = tl.load(m_at + whole, mask=inside[None, :], other=0.0)
        factor = tl.load(q_at + whole * r, mask=inside[:, None], other=0.0)
        sums = tl.dot(matrix, factor, sums, input_precision="tf32x3")
    return tl.trans(sums)


@triton.jit
def left(matrices, factors, numbers, facts, room, R: tl.constexpr, EXACT: tl.constexpr, LISTED: tl.constexpr,
         ALIGNED: tl.constexpr, FOURS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
         STAGES: tl.constexpr):  # fmt: skip
    """Compute M·Q for some rows along one span of columns."""
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
    row = tl.minimum(i, n - 1)[:, None]
    matrix = pointed(matrices, number, LISTED, ALIGNED)
    q_at = factor_at(factors, facts, number, FOURS) + begin * r + j[:, None] * r + column[None, :]
    count = tl.minimum(longest, m - begin).to(tl.int32)
    if ALIGNED and m % 4 == 0:  # read in fours, which the compiler must be shown
        m_at = matrix + begin // 4 * 4 + row * (m // 4 * 4) + j[None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    else:
        m_at = matrix + begin + row * m + j[None, :]
        sums = _along(m_at, q_at, r, count, R, ROWS, STEP, STAGES)
    keep(room, facts, number, span, i, n, c, r, sums, R, WHOLE)


@triton.jit
def _down(m_at, p_at, m, r, count, R: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr):
    sums = tl.zeros([R, COLUMNS], tl.float32)
    whole = count // STEP * STEP
    for i in tl.range(0, whole, STEP, num_stages=STAGES):
        sums = tl.dot(tl.trans(tl.load(p_at + i * r)), tl.load(m_at + i * m), sums, input_precision="tf32x3")
    if whole < count:
        inside = (tl.arange(0, STEP) < count - whole)[:, None]
        factor = tl.load(p_at + whole * r, mask=inside, other=0.0)
        matrix = tl.load(m_at + whole * m, mask=inside, other=0.0)
        sums = tl.dot(tl.trans(factor), matrix, sums, input_precision="tf32x3")
    return sums


@triton.jit
def right(matrices, factors, numbers, facts, room, R: tl.constexpr, EXACT: tl.constexpr, LISTED: tl.constexpr,
          ALIGNED: tl.constexpr, FOURS: tl.constexpr, WHOLE: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
          STAGES: tl.constexpr):  # fmt: skip
    """Compute M'·P for some columns down one span of rows."""
    number, block, span = place(numbers, facts, LISTED)
    n, m, r = fact(facts, number, 0), fact(facts, number, 1), fact(facts, number, 2).to(tl.int32)
    longest = fact(facts, number, 5)
    c, j = tl.arange(0, R), tl.arange(0, STEP)
    column = tl.minimum(c, r - 1)
    if EXACT:
        r = R
        column = c
    begin = span * longest
    matrix = pointed(matrices, number, LISTED, ALIGNED)
    p_at = factor_at(factors, facts, number, FOURS) + begin * r + j[:, None] * r + column[None, :]
    count = tl.minimum(longest, n - begin).to(tl.int32)
    first, k = block.to(tl.int64) * COLUMNS, tl.arange(0, COLUMNS)
    if ALIGNED and m % 4 == 0 and first + COLUMNS <= m:
        fours = m // 4 * 4
        m_at = matrix + (begin * fours + first) + j[:, None] * fours + k[None, :]
        sums = _down(m_at, p_at, fours, r, count, R, COLUMNS, STEP, STAGES)
    else:
        m_at = matrix + begin * m + j[:, None] * m + tl.minimum(first + k, m - 1)[None, :]
        sums = _down(m_at, p_at, m, r, count, R, COLUMNS, STEP, STAGES)
    keep(room, facts, number, span, first + k, m, c, r, sums, R, WHOLE)

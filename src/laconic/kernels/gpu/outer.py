"""What low-rank factors make for a list of matrices in one launch: products P·Q' with what they leave of an input, and
the next step's factors.

A product is written once, 4 bytes an element; with a rest, which is read and written beside it, 12. Narrow factors are
multiplied column by column, others on tensor cores as in `wide_factors`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu import wide_factors as wide
from laconic.kernels.gpu.column_lists import tiles_of
from laconic.kernels.gpu.factors import suits, unchecked
from laconic.kernels.gpu.lists import pointers, table
from laconic.kernels.gpu.triton_helpers import finite, located, pointed
from laconic.kernels.lists import Packed, packed

_ROWS, _WIDE_ROWS, _COLUMNS, _WARPS = 32, 64, 128, 4  # of a tile, with narrow factors and with wide ones
_NARROW = 8  # columns of a factor up to which no tensor cores are used
_CHUNK = 16384  # elements of a factor whose columns are looked at together
_FACTS = tl.constexpr(5)


@triton.jit
def _product(p_at, q_at, r, rows, columns, R: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
             NARROW: tl.constexpr):  # fmt: skip
    """Return a tile of P·Q', of which so many rows and columns are inside."""
    i, k = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    if NARROW:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for c in range(r):
            p = tl.load(p_at + i * r + c, mask=i < rows, other=0.0)
            q = tl.load(q_at + k * r + c, mask=k < columns, other=0.0)
            total += p[:, None] * q[None, :]
        return total
    else:
        c = tl.arange(0, R)[None, :]
        p = tl.load(p_at + i[:, None] * r + c, mask=(i < rows)[:, None] & (c < r), other=0.0)
        q = tl.load(q_at + k[:, None] * r + c, mask=(k < columns)[:, None] & (c < r), other=0.0)
        return tl.dot(p, tl.trans(q), input_precision="tf32x3")


@triton.jit
def _put(out, rest, at, inside, total, WRITTEN: tl.constexpr, KEPT: tl.constexpr, MASKED: tl.constexpr):
    if MASKED:
        if WRITTEN:
            tl.store(out + at, total, mask=inside)
        if KEPT:
            tl.store(rest + at, finite(tl.load(rest + at, mask=inside) - total), mask=inside)
    else:
        if WRITTEN:
            tl.store(out + at, total)
        if KEPT:
            tl.store(rest + at, finite(tl.load(rest + at) - total))


@triton.jit(do_not_specialize=["place_2"])
def _outer(out, rest, place_0, place_1, place_2, facts, lefts, rights, R: tl.constexpr, EXACT: tl.constexpr,
           NARROW: tl.constexpr, WRITTEN: tl.constexpr, KEPT: tl.constexpr, LISTED: tl.constexpr, ALIGNED: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Write a tile of P·Q' (WRITTEN), and what it leaves of the rest (KEPT)."""
    number, tile, _ = located(place_0, place_1, place_2, 1, LISTED)
    facts += _FACTS * number
    n, m, r = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2).to(tl.int32)
    if EXACT:
        r = R
    across = (m + COLUMNS - 1) // COLUMNS
    row, column = tile // across * ROWS, tile % across * COLUMNS
    p_at, q_at = lefts + tl.load(facts + 3) + row * r, rights + tl.load(facts + 4) + column * r
    total = _product(p_at, q_at, r, n - row, m - column, R, ROWS, COLUMNS, NARROW)
    out, rest = pointed(out, number, LISTED, ALIGNED), pointed(rest, number, LISTED, ALIGNED)
    i, k = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
    if ALIGNED and m % 4 == 0 and row + ROWS <= n and column + COLUMNS <= m:  # written in fours
        _put(out, rest, i * (m // 4 * 4) + k, i < n, total, WRITTEN, KEPT, False)
    else:
        _put(out, rest, i * m + k, (i < n) & (k < m), total, WRITTEN, KEPT, True)


def outer_products(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], out: Sequence[Tensor] | None, rests: Sequence[Tensor] | None
) -> None:
    given = [unchecked(tensors) for tensors in (out, rests) if tensors is not None]
    if not (suits(lefts, wide.MOST, *(x for tensors in given for x in tensors)) and suits(rights, wide.MOST)):
        return reference.outer_products(lefts, rights, out, rests)
    p, q = packed(lefts), packed(rights)
    device = p.device
    shapes = tuple((n, m) for (n, _), (m, _) in zip(p.shapes, q.shapes, strict=True))
    ranks = [r for _, r in p.shapes]
    rows = zip(shapes, ranks, p.starts, q.starts, strict=True)
    facts = table(tuple(x for shape, r, *begins in rows for x in (*shape, r, *begins)), torch.int64, device)
    narrow = max(ranks) <= _NARROW
    columns = max(1 if narrow else wide.LEAST, 1 << (max(ranks) - 1).bit_length())
    height = _ROWS if narrow else _WIDE_ROWS
    tiles = tiles_of(shapes, height, _COLUMNS, device)
    (written, aligned), (rest, aligned_too) = pointers(out or rests or ()), pointers(rests or out or ())
    _outer[(tiles.count,)](
        written, rest, *tiles.place, facts, p.flat, q.flat, columns, {columns} == set(ranks), narrow, out is not None,
        rests is not None, len(shapes) > 1, aligned and aligned_too, height, _COLUMNS, num_warps=_WARPS,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _replace(kept, found, facts, R: tl.constexpr, EXACT: tl.constexpr, CHUNK: tl.constexpr):
    """Look at all columns of a factor, and copy those that are to be taken."""
    facts += 3 * tl.program_id(0)
    n, r, begin = tl.load(facts), tl.load(facts + 1), tl.load(facts + 2)
    if EXACT:
        r = R
    i, c = tl.arange(0, CHUNK)[:, None], tl.arange(0, R)[None, :]
    some, known = tl.zeros([CHUNK, R], tl.int32), tl.full([CHUNK, R], 1, tl.int32)
    for first in range(0, n, CHUNK):
        x = tl.load(found + begin + (first + i) * r + c, mask=(first + i < n) & (c < r), other=0.0)
        some |= (x != 0).to(tl.int32)
        known &= (tl.abs(x) < float("inf")).to(tl.int32)
    taken = (tl.max(some, axis=0) & tl.min(known, axis=0))[None, :] == 1
    for first in range(0, n, CHUNK):
        at, inside = begin + (first + i) * r + c, (first + i < n) & (c < r) & taken
        tl.store(kept + at, tl.load(found + at, mask=inside), mask=inside)


def replace_columns(kept: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    lie_so = isinstance(kept, Packed) or (len(kept) == 1 and kept[0].is_contiguous())
    if not (lie_so and suits(kept, wide.MOST) and suits(found, wide.MOST)):
        return reference.replace_columns(kept, found)
    old, new = packed(kept), packed(found)
    ranks = [r for _, r in old.shapes]
    columns = 1 << (max(ranks) - 1).bit_length()
    rows = zip(old.shapes, old.starts, strict=True)
    facts = table(tuple(x for shape, begin in rows for x in (*shape, begin)), torch.int64, old.device)
    _replace[(len(ranks),)](old.flat, new.flat, facts, columns, {columns} == set(ranks), _CHUNK // columns, num_warps=8)

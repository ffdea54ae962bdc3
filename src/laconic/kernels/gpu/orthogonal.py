"""Orthonormal columns for a list of thin factors, in five launches.

Gram–Schmidt needs no more of a factor than the products of its columns with each other, r x r numbers. These are summed
in float64, where a column is distinguished from rounding (1e-6 of its length) as surely as by float32's own sums; the
factor is then multiplied by the matrix that Gram–Schmidt makes of them, and a second time against what is left. So no
column waits for another: chunks of rows are summed; one program for each factor makes the matrix; chunks are multiplied
by it and summed again; and once more. 20 bytes an element in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.gpu.factors import suits
from laconic.kernels.gpu.lists import starts, table, tiled
from laconic.kernels.gpu.triton_helpers import located
from laconic.kernels.lists import Packed, packed, room_for
from laconic.kernels.reference.factors import ROUNDING

_CHUNK = 512  # rows
_ELEMENTS = 8192  # of a chunk at most, so that they fit into registers
_WARPS, _TURN_WARPS = 8, 4
_ANYWHERE = ["factors"]  # not specialised by alignment: workers must agree to the bit, so sums have one order for all
_ROUNDING = tl.constexpr(ROUNDING**2)
_FINITE = tl.constexpr(1e300)  # more than squares of float32 sum up to
_MOST = 64  # columns up to which a table of their products is used


@triton.jit
def _at(x, i, n, r, j):
    """Return column j of some rows, in float64, zeros behind the end."""
    return tl.load(x + i * r + j, mask=i < tl.where(j < r, n, 0), other=0.0).to(tl.float64)


@triton.jit
def _products(x, i, n, r, gram, R: tl.constexpr):
    """Compute the products of the columns of some rows with each other, a row of the table at a time."""
    c = tl.arange(0, R)
    rows = tl.load(x + i[:, None] * r + c[None, :], mask=(i < n)[:, None] & (c < r)[None, :], other=0.0).to(tl.float64)
    for j in range(R):
        tl.store(gram + j * R + c, tl.sum(rows * _at(x, i, n, r, j)[:, None], axis=0))


@triton.jit
def _sums(grams, first, count, R: tl.constexpr):
    """Return the sums over a factor's chunks, several at once."""
    AT_ONCE: tl.constexpr = 4096 // (R * R) if R > 8 else 64
    s, i = tl.arange(0, AT_ONCE), tl.arange(0, R * R)
    whole = tl.zeros([R * R], tl.float64)
    for chunk in range(0, count, AT_ONCE):
        at = grams + (first + chunk + s).to(tl.int64)[:, None] * (R * R) + i[None, :]
        whole += tl.sum(tl.load(at, mask=(chunk + s < count)[:, None], other=0.0), axis=0)
    return tl.reshape(whole, [R, R])


@triton.jit
def _turn(gram, R: tl.constexpr):
    """Return the matrix to multiply the columns with from the right, by Gram–Schmidt on their products alone."""
    c = tl.arange(0, R)
    i, j = c[:, None], c[None, :]
    alone = tl.where(i == j, gram, 0.0)
    known = (tl.sum(alone, axis=1) < _FINITE)[:, None] & (tl.sum(alone, axis=0) < _FINITE)[None, :]
    gram = tl.where(known, gram, 0.0)
    turn = tl.zeros([R, R], tl.float64)
    for k in range(R):
        with_all = tl.sum(tl.where(j == k, gram, 0.0), axis=1)
        with_found = tl.sum(turn * with_all[:, None], axis=0)
        new = tl.where(c == k, 1.0, 0.0) - tl.sum(turn * with_found[None, :], axis=1)
        whole = tl.sum(tl.where(c == k, with_all, 0.0), axis=0)
        rest = whole - tl.sum(with_found * with_found, axis=0)
        found = rest > _ROUNDING * whole
        new *= tl.where(found, 1.0 / tl.sqrt(tl.where(found, rest, 1.0)), 0.0)
        turn = tl.where(j == k, new[:, None], turn)
    return turn


@triton.jit(do_not_specialize_on_alignment=_ANYWHERE)
def _summed(factors, place_0, place_1, place_2, widths, begins, grams, R: tl.constexpr, CHUNK: tl.constexpr,
            LISTED: tl.constexpr):  # fmt: skip
    number, base, n = located(place_0, place_1, place_2, CHUNK, LISTED)
    i, gram = base + tl.arange(0, CHUNK), grams + tl.program_id(0).to(tl.int64) * (R * R)
    _products(factors + tl.load(begins + number), i, n, tl.load(widths + number), gram, R)


@triton.jit
def _turns(lengths, firsts, grams, turns, R: tl.constexpr, CHUNK: tl.constexpr):
    """Find the matrix that makes one factor's columns orthonormal."""
    number, c = tl.program_id(0), tl.arange(0, R)
    count = ((tl.load(lengths + number) + CHUNK - 1) // CHUNK).to(tl.int32)
    turn = _turn(_sums(grams, tl.load(firsts + number), count, R), R)
    tl.store(turns + (number * R + c[:, None]) * R + c[None, :], turn)


@triton.jit(do_not_specialize_on_alignment=_ANYWHERE)
def _turned(factors, place_0, place_1, place_2, widths, begins, turns, out, again, R: tl.constexpr,
            CHUNK: tl.constexpr, LISTED: tl.constexpr, AGAIN: tl.constexpr):  # fmt: skip
    """Multiply a chunk of a factor, and compute the new columns' products (AGAIN)."""
    number, base, n = located(place_0, place_1, place_2, CHUNK, LISTED)
    r, begin, c = tl.load(widths + number), tl.load(begins + number), tl.arange(0, R)
    turns += number.to(tl.int64) * (R * R)
    i = base + tl.arange(0, CHUNK)
    y = tl.zeros([CHUNK, R], tl.float64)
    for j in range(R):
        row = tl.load(turns + j * R + c)
        used = tl.max((row != 0).to(tl.int32), axis=0) > 0  # NaN times zero would stay NaN
        y += tl.where(used, _at(factors + begin, i, n, r, j), 0.0)[:, None] * row[None, :]
    at = out + begin + i[:, None] * r + c[None, :]
    tl.store(at, y.to(tl.float32), mask=(i < n)[:, None] & (c < r)[None, :])
    if AGAIN:
        tl.debug_barrier()  # columns are read by other threads than wrote them
        _products(out + begin, i, n, r, again + tl.program_id(0).to(tl.int64) * (R * R), R)


def orthogonalised(factors: Sequence[Tensor]) -> Packed:
    if not suits(factors, _MOST):
        return reference.orthogonalised(factors)
    given = packed(factors)
    device, columns = given.device, tuple(r for _, r in given.shapes)
    wide = 1 << (max(columns) - 1).bit_length()
    chunk = min(_CHUNK, _ELEMENTS // wide)
    rows = tuple(n for n, _ in given.shapes)
    tiles, widths = tiled(rows, chunk, device), table(columns, torch.int32, device)
    begins = table(given.starts, torch.int64, device)
    between, found = room_for(given.shapes, given.flat), room_for(given.shapes, given.flat)
    grams = torch.empty(tiles.count * wide**2, dtype=torch.float64, device=device)
    turns = torch.empty(len(given) * wide**2, dtype=torch.float64, device=device)
    facts, grid = (*tiles.place, widths, begins), (tiles.count,)
    how = {"R": wide, "CHUNK": chunk, "LISTED": len(given) > 1, "num_warps": _WARPS}
    firsts = starts([-(-n // chunk) for n in rows])[:-1]
    chunks = (table(rows, torch.int64, device), table(firsts, torch.int32, device), grams, turns, wide, chunk)
    _summed[grid](given.flat, *facts, grams, **how)
    _turns[(len(given),)](*chunks, num_warps=_TURN_WARPS)
    _turned[grid](given.flat, *facts, turns, between.flat, grams, **how, AGAIN=True)
    _turns[(len(given),)](*chunks, num_warps=_TURN_WARPS)
    _turned[grid](between.flat, *facts, turns, found.flat, grams, **how, AGAIN=False)
    return found

"""Walsh–Hadamard transforms of short blocks, for lists of tensors on CPUs, compiled by Numba: the bits of `reference`.

A tile of many blocks goes through all stages in the cache. Values 1, 2 and 4 apart are paired in loops of their own,
which the compiler turns into vector instructions; those further apart lie in different vectors in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.kernels import reference
from laconic.kernels.cpu.lists import _finite, _pointer, carray
from laconic.kernels.cpu.loops import _compiled, _map
from laconic.kernels.cpu.whole import _counted, _room, _spans
from laconic.kernels.lists import listed
from laconic.kernels.reference.rotation import BLOCK_SIGNS, Turned, signs

_TILE = 1024  # values of a tile; longer blocks are tiles themselves


@_compiled
def _ones(v):  # type: ignore[no-untyped-def]
    for g in range(v.size // 2):
        a, b = v[2 * g], v[2 * g + 1]
        v[2 * g], v[2 * g + 1] = a + b, a - b


@_compiled
def _twos(v):  # type: ignore[no-untyped-def]
    for g in range(v.size // 4):
        i = 4 * g
        a, b, c, d = v[i], v[i + 1], v[i + 2], v[i + 3]
        v[i], v[i + 1], v[i + 2], v[i + 3] = a + c, b + d, a - c, b - d


@_compiled
def _fours(v):  # type: ignore[no-untyped-def]
    for g in range(v.size // 8):
        i = 8 * g
        for j in range(i, i + 4):
            a, b = v[j], v[j + 4]
            v[j], v[j + 4] = a + b, a - b


@_compiled
def _far(v, width):  # type: ignore[no-untyped-def]
    for i in range(0, v.size, 2 * width):
        one, other = v[i : i + width], v[i + width : i + 2 * width]
        for j in range(width):
            a, b = one[j], other[j]
            one[j], other[j] = a + b, a - b


@_compiled
def _transform(v, block):  # type: ignore[no-untyped-def]
    """Transform blocks in place, but for the factor."""
    _ones(v)
    if block > 2:
        _twos(v)
    if block > 4:
        _fours(v)
    width = 8
    while width < block:
        _far(v, width)
        width *= 2


@_compiled
def _read(x, v):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        v[i] = x[i]
    for i in range(x.size, v.size):
        v[i] = 0


@_compiled
def _turn(v, turns):  # type: ignore[no-untyped-def]
    for begin in range(0, v.size, turns.size):
        for j in range(turns.size):
            v[begin + j] *= turns[j]


@_compiled
def _keep(v, scale, share, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = _finite(out[i] - v[i] * scale * share)


@_compiled
def _write(v, scale, share, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = v[i] * scale * share


@_compiled
def _blocks(places, lengths, targets, wanted, block, scale, shares, rest, turns, before, after, first, last):  # type: ignore[no-untyped-def]
    tile = max(_TILE, block)
    room = np.empty(tile, np.float32)
    for t in range(first, last):
        n, whole = lengths[t], -(-lengths[t] // block) * block
        x, out = carray(_pointer(places[t]), n), carray(_pointer(targets[t]), wanted[t])
        for begin in range(0, wanted[t], tile):
            count, size = min(tile, n - begin), min(tile, whole - begin)
            v = room[:size]
            _read(x[begin : begin + count], v)
            if before:
                _turn(v, turns)
            _transform(v, block)
            if after:
                _turn(v, turns)
            part = out[begin : min(begin + size, wanted[t])]
            if rest:
                _keep(v, scale, shares[t], part)
            else:
                _write(v, scale, shares[t], part)


@cache
def _turns(block: int) -> NDArray[np.float32]:
    turns: NDArray[np.float32] = signs(BLOCK_SIGNS, block, torch.device("cpu")).numpy()
    return turns


def hadamard_blocks(
    xs: Sequence[Tensor],
    lengths: Sequence[int],
    block: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
    rest: bool = False,
    turned: Turned = "",
) -> Sequence[Tensor]:
    xs, found = listed(xs), _room(lengths, out)
    if not xs.plain or not found.plain:
        return reference.hadamard_blocks(xs, lengths, block, out, shares, rest, turned)
    places = (*xs.table.numpy(), *found.table.numpy())
    sides = (_turns(block), turned == "before", turned == "after")
    given = (*places, block, np.float32(block**-0.5), _counted(shares, len(xs)), rest, *sides)
    _map(lambda span: _blocks(*given, *span), _spans(xs.lengths))
    return found

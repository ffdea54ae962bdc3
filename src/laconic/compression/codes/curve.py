"""Sorted values as a curve: polynomials of degree five between its bends, for either sign by itself.

A curve is its number of values that are not negative, the lengths of eight segments and six coefficients of each: 228
bytes however many values there are. Lengths of zero are segments that are not needed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from torch import Tensor

from laconic.compression.payload import pack, unpack

SEGMENTS, DEGREE = 4, 5  # of each sign
BYTES = 4 + 2 * SEGMENTS * (4 + 4 * (DEGREE + 1))
_SHORTEST = 2 * (DEGREE + 1)

Vector = NDArray[np.float64]


def write(values: Tensor) -> Tensor:
    """Encode finite values in descending order."""
    curve = values.double().cpu().numpy()
    positive = int((curve >= 0).sum())
    lengths, rows = [], []
    for part in (curve[:positive], curve[positive:]):
        ends = [0, *bends(part), len(part)]
        pieces = [part[a:b] for a, b in pairwise(ends)]
        pieces += [part[:0]] * (SEGMENTS - len(pieces))
        lengths += [len(piece) for piece in pieces]
        rows += [_fitted(piece) for piece in pieces]
    counts = torch.tensor([positive, *lengths], dtype=torch.int32)
    return pack(counts, torch.from_numpy(np.stack(rows)).float()).to(values.device)


def read(written: Tensor) -> Tensor:
    """Return the values of a curve, in descending order."""
    counts, rows = unpack(written, (torch.int32, 1 + 2 * SEGMENTS), (torch.float32, -1))
    coefficients = rows.double().cpu().numpy().reshape(2 * SEGMENTS, DEGREE + 1)
    pieces = [chebyshev.chebval(_at(n), row) for n, row in zip(counts[1:].tolist(), coefficients, strict=True)]
    return torch.from_numpy(np.concatenate(pieces)).float().to(written.device)


def bends(curve: Vector) -> list[int]:
    """Return where a curve is cut: again and again at the point that is farthest from its segment's chord."""
    ends = [0, len(curve)]
    while len(ends) <= SEGMENTS:
        best, place = 0.0, 0
        for a, b in pairwise(ends):
            if b - a >= 2 * _SHORTEST:
                chord = np.linspace(curve[a], curve[b - 1], b - a)
                away = np.abs(curve[a:b] - chord)[_SHORTEST : b - a - _SHORTEST + 1]
                if away.max() > best:
                    best, place = float(away.max()), a + _SHORTEST + int(away.argmax())
        if not place:
            break
        ends = sorted([*ends, place])
    return ends[1:-1]


def _at(count: int) -> Vector:
    return np.linspace(-1.0, 1.0, count)


def _fitted(piece: Vector) -> Vector:
    """Return the coefficients of the polynomial that fits best, as Chebyshev's."""
    found = np.zeros(DEGREE + 1)
    if len(piece):
        degree = min(DEGREE, len(piece) - 1)
        found[: degree + 1] = chebyshev.chebfit(_at(len(piece)), piece, degree) if degree else piece
    return found

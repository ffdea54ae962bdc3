"""Low rank: products of matrices with thin factors and of factors with each other, and factors with orthonormal
columns; a list of each.

Matrix products have no fixed order of sums: faster bodies are as near to the exact product as these, not equal to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.kernels.lists import Packed, packed, room_for

ROUNDING = 1e-6
"""The share of a column below which what is left of it is rounding noise."""


def left_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    """Return P = M·Q of each matrix (n x m) and its factor (m x r), one behind another."""
    found = room_for([(len(m), f.shape[1]) for m, f in zip(matrices, factors, strict=True)], matrices[0])
    for matrix, factor, product in zip(matrices, factors, found, strict=True):
        torch.mm(matrix, factor, out=product)
    return found


def right_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> Packed:
    """Return Q = M'·P of each matrix (n x m) and its factor (n x r), one behind another."""
    return left_products([matrix.T for matrix in matrices], factors)


def outer_products(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], out: Sequence[Tensor] | None, rests: Sequence[Tensor] | None
) -> None:
    """Write P·Q' of each pair of factors (n x r, m x r) into its matrix of `out`; each of the `rests` (n x m) becomes
    rest - P·Q', where that is finite, and otherwise zero. Either may be left out."""
    for number, (p, q) in enumerate(zip(lefts, rights, strict=True)):
        product = p @ q.T if out is None else torch.mm(p, q.T, out=out[number])
        if rests is not None:
            rests[number].sub_(product).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def replace_columns(kept: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Replace the columns of factors by those that were found, in place; those that are zero or not finite are not
    taken, since power iteration never leaves them again."""
    for old, new in zip(kept, found, strict=True):
        old.copy_(torch.where((new != 0).any(dim=0) & new.isfinite().all(dim=0), new, old))


def orthogonalised(factors: Sequence[Tensor]) -> Packed:
    """Return each factor with its columns made orthonormal, from the first on, one behind another.

    Gram–Schmidt, column by column, and a second time against what rounding left of the others; a column that is only
    rounding noise, or not finite, becomes zero.
    """
    return packed([_orthogonal(factor) for factor in factors])


def _orthogonal(matrix: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for column in matrix.T:
        whole = column.norm()
        for other in columns * 2:
            column = column - (other @ column) * other
        rest = column.norm()
        columns.append(torch.where(rest > ROUNDING * whole, column / rest, 0.0))
    return torch.stack(columns, dim=1)

"""Low rank: products of matrices with thin factors, and factors with orthonormal columns; a list of each.

Matrix products have no fixed order of sums: faster bodies are as near to the exact product as these, not equal to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 1e-6
"""The share of a column below which what is left of it is rounding noise."""


def left_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor]:
    """Return P = M·Q of each matrix (n x m) and its factor (m x r)."""
    return [matrix @ factor for matrix, factor in zip(matrices, factors, strict=True)]


def right_products(matrices: Sequence[Tensor], factors: Sequence[Tensor]) -> list[Tensor]:
    """Return Q = M'·P of each matrix (n x m) and its factor (n x r)."""
    return [matrix.T @ factor for matrix, factor in zip(matrices, factors, strict=True)]


def orthogonalised(factors: Sequence[Tensor]) -> list[Tensor]:
    """Return each factor with its columns made orthonormal, from the first on.

    Gram–Schmidt, column by column, and a second time against what rounding left of the others; a column that is only
    rounding noise, or not finite, becomes zero.
    """
    return [_orthogonal(factor) for factor in factors]


def _orthogonal(matrix: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for column in matrix.T:
        whole = column.norm()
        for other in columns * 2:
            column = column - (other @ column) * other
        rest = column.norm()
        columns.append(torch.where(rest > ROUNDING * whole, column / rest, 0.0))
    return torch.stack(columns, dim=1)

"""Sums in an order that is fixed here, so that a scale has the same bits wherever it is computed.

A block of 1024 values is 64 rows of 16 lanes: lanes are added up row by row, then halved pairwise. Sums of blocks are
summed in the same way until one is left. Missing values are zeros, which change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

LANES, ROWS = 16, 64
BLOCK = LANES * ROWS


def rows_summed(x: Tensor) -> Tensor:
    """Along the last dimension, of any length."""
    while True:
        n = x.shape[-1]
        blocks = max(1, -(-n // BLOCK))
        x = torch.nn.functional.pad(x, (0, blocks * BLOCK - n)).view(*x.shape[:-1], blocks, ROWS, LANES)
        total = x[..., 0, :].clone()
        for row in range(1, min(ROWS, -(-n // LANES))):
            total += x[..., row, :]
        width = LANES
        while width > 1:
            width //= 2
            total = total[..., :width] + total[..., width:]
        x = total.squeeze(-1)
        if blocks == 1:
            return x.squeeze(-1)

"""Two means for each column of a matrix (Seide et al., 1-bit SGD, Interspeech 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.sums import rows_summed

HEIGHT = 64
"""The number of rows that are summed at once."""


def columns_summed(x: Tensor) -> Tensor:
    """Return the sum of each column, in an order that suits tiles.

    The second half of 64 rows is added to the first until one row is left; sums of such blocks are summed in the same
    way until one is left. Missing rows are zeros. A single column is summed in the order of `sums`.
    """
    if x.shape[1] == 1:
        return rows_summed(x.view(-1)).view(1)
    while True:
        n, columns = x.shape
        blocks = max(1, -(-n // HEIGHT))
        x = torch.nn.functional.pad(x, (0, 0, 0, blocks * HEIGHT - n)).view(blocks, HEIGHT, columns)
        height = HEIGHT
        while height > 1:
            height //= 2
            x = x[:, :height] + x[:, height:]
        x = x.squeeze(1)
        if blocks == 1:
            return x.squeeze(0)


def column_means(x: Tensor) -> Tensor:
    """Return for each column the mean of its negative values, and in a second row that of the others; zero where there
    are none. NaN counts in both sums."""
    sums = torch.stack([columns_summed(x.clamp(max=0)), columns_summed(x.clamp(min=0))]) + 0.0  # turns -0.0 into 0.0
    ones = (x >= 0).sum(dim=0, dtype=torch.int32 if len(x) < 1 << 31 else torch.int64)
    means = sums / torch.stack([len(x) - ones, ones]).clamp(min=1).float()
    return torch.where(means.isnan(), float("nan"), means)  # one NaN pattern for all devices


def of_columns(high: Tensor, means: Tensor) -> Tensor:
    """Return for each element the one of its column's two means that stands for it."""
    return torch.where(high, means[1], means[0])

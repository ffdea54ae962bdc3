"""Buckets: runs of consecutive elements that share a scale, of which the last may be shorter."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.sums import rows_summed


def in_buckets(x: Tensor, bucket: int) -> Tensor:
    """Return a row for each bucket, padded with zeros."""
    rows = -(-x.numel() // bucket)
    return torch.nn.functional.pad(x, (0, rows * bucket - x.numel())).view(rows, bucket)


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    """Return one number for each bucket: its largest magnitude, or the sum of magnitudes or squares in the order of
    `sums`."""
    rows = in_buckets(x, bucket)
    if norm == "max":
        return rows.abs().amax(dim=1) if rows.numel() else rows.new_zeros(0)
    return rows_summed(rows.abs() if norm == "l1" else rows * rows)

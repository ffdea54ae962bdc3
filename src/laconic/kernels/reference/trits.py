"""Ternary digits, five to a byte (Lim, Andersen, Kaminsky, 3LC, MLSys 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHTS = (81, 27, 9, 3, 1)
"""The weights of the five digits in a byte, one from each fifth of a tensor."""


def pack_trits(digits: Tensor) -> Tensor:
    """Pack digits -1, 0, 1 in base 3, each plus one, five to a byte.

    As in the paper, a tensor is cut into five stretches of equal length, the last padded with zeros, and byte j joins
    the j-th digit of each, so that five streams are read in order.
    """
    stretch = -(-digits.numel() // 5)
    filled = torch.nn.functional.pad(digits, (0, 5 * stretch - digits.numel()))
    rows = (filled + 1).to(torch.uint8).view(5, stretch)
    return (rows * rows.new_tensor(WEIGHTS)[:, None]).sum(dim=0, dtype=torch.uint8)


def unpack_trits(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` digits of the stretches one behind another, as int8. Bytes are below 243."""
    digits = packed // packed.new_tensor(WEIGHTS)[:, None] % 3
    return digits.view(-1)[:count].to(torch.int8) - 1


def largest_trit(v: Tensor, sparsity: float) -> Tensor:
    """Return what a digit stands for: a multiple of the largest magnitude; NaN if one of the values is NaN."""
    most = sparsity * v.abs().amax() if v.numel() else v.new_zeros(())
    return torch.where(most.isnan(), float("nan"), most)  # one NaN pattern for all devices


def trits_of(v: Tensor, most: Tensor) -> Tensor:
    """Return the signs of values of at least half of that, else 0, as int8."""
    return torch.where(v.abs() >= most / 2, v.sign(), 0.0).to(torch.int8)

"""Rounding to levels at random, so that the mean is right."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import uniform
from laconic.kernels.reference.buckets import in_buckets


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """`steps` and the level with its sign, a code from 0 to 2·steps. The level is |x|·steps/scale, rounded up with the
    probability of its fraction, by the draw of the element's place; what is not a number takes the last one."""
    factors = torch.where(scales > 0, steps / scales, torch.zeros_like(scales))
    a = x.abs() * factors.repeat_interleave(bucket)[: x.numel()]
    whole = a.floor()
    level = (whole + (uniform(key, 0, x.numel(), x.device) < a - whole)).fmin(torch.tensor(float(steps)))
    return (torch.where(x < 0, -level, level) + steps).to(torch.uint8)


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """The same where a code takes at most four bits: two in a byte, the first in its lower half."""
    pairs = in_buckets(quantize(x, scales, bucket, steps, key), 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """total += what `quantize` wrote: so many `steps`-ths of the bucket's scale."""
    total += (codes.float() - steps) * (scales * (1 / steps)).repeat_interleave(bucket)[: total.numel()]


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """The same from two codes in a byte."""
    codes = torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[: total.numel()]
    add_levels(total, codes, scales, bucket, steps)

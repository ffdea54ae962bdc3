"""Random rounding to levels, so that the mean is right."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import uniform
from laconic.kernels.reference.buckets import in_buckets


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """Return `steps` plus the signed level for each value, a code from 0 to 2·steps.

    The level is |x|·(steps/scale), rounded up with the probability of its fraction, by the draw of the element's place;
    NaN takes the last level. The quotient is one of tensors, which is rounded once: torch multiplies the reciprocal of
    a tensor by a Python number.
    """
    quotients = torch.full_like(scales, steps) / scales
    factors = torch.where(scales > 0, quotients, torch.zeros_like(scales))
    a = x.abs() * factors.repeat_interleave(bucket)[: x.numel()]
    whole = a.floor()
    level = (whole + (uniform(key, 0, x.numel(), x.device) < a - whole)).fmin(torch.tensor(float(steps)))
    return (torch.where(x < 0, -level, level) + steps).to(torch.uint8)


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """Return the codes of `quantize` where a code takes at most four bits: two in a byte, the first in its lower
    half."""
    pairs = in_buckets(quantize(x, scales, bucket, steps, key), 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """Add the values of `quantize`'s codes to the total: the level times 1/`steps` of the bucket's scale."""
    total += (codes.float() - steps) * (scales * (1 / steps)).repeat_interleave(bucket)[: total.numel()]


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """Add the values of codes that lie two in a byte to the total."""
    codes = torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[: total.numel()]
    add_levels(total, codes, scales, bucket, steps)

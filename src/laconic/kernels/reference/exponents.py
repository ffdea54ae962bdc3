"""Powers of two: a sign and eight bits of exponent (Horváth et al., natural compression, MSML 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import integers

WIDTH = 9
"""The number of bits of a code."""


def exponents_of(x: Tensor, key: int) -> Tensor:
    """Return codes of sign and exponent, as int64, by random rounding to a power of two.

    The exponent is raised by one with the probability of the mantissa over 2²³, by the draw of the element's place.
    Neither zero's exponent nor the largest ones are raised.
    """
    pattern = x.contiguous().view(torch.int32).long()
    draws = integers(key, 0, x.numel(), x.device) >> 1  # 23 bits, as many as a mantissa has
    exponent, mantissa = (pattern >> 23) & 0xFF, pattern & 0x7FFFFF
    raised = (draws < mantissa) & (exponent > 0) & (exponent < 254)
    return ((pattern < 0).long() << 8) | (exponent + raised)


def powers_of(codes: Tensor) -> Tensor:
    """Return the values of such codes, as float32."""
    pattern = ((codes & 0xFF) << 23) - ((codes >> 8) << 31)
    return pattern.to(torch.int32).view(torch.float32)

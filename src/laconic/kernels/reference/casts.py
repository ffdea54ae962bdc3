"""Casts: the same numbers in a shorter floating-point format, and back."""

from __future__ import annotations

from torch import Tensor


def shorten(x: Tensor, divisor: int, out: Tensor) -> None:
    """Write x / divisor into a flat tensor of a shorter format, rounded to nearest, ties to even; `x` is not needed
    afterwards and may be overwritten."""
    out.copy_(x if divisor == 1 else x.div_(divisor))


def lengthen(short: Tensor, out: Tensor) -> None:
    """Write the values of a flat tensor of a shorter format into `out`."""
    out.copy_(short)

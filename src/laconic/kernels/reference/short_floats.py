"""Floats of eight or four bits: their values in the order of their codes, and rounding to them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class ShortFloat:
    """A format of short floats: its non-negative values in the order of their codes; the bit above is the sign."""

    width: int
    mantissa: int
    levels: tuple[float, ...]

    @property
    def most(self) -> float:
        return self.levels[-1]

    def table(self, device: torch.device) -> Tensor:
        return torch.tensor(self.levels, device=device)


@cache
def short_floats() -> dict[str, ShortFloat]:
    """Return the formats by name: the numbers of bits of exponent (e) and mantissa (m)."""

    def eight(kind: torch.dtype, mantissa: int) -> ShortFloat:
        every = torch.arange(128, dtype=torch.uint8).view(kind).float()
        return ShortFloat(8, mantissa, tuple(every[every.isfinite()].tolist()))

    return {
        "e4m3": eight(torch.float8_e4m3fn, 3),
        "e5m2": eight(torch.float8_e5m2, 2),
        "e2m1": ShortFloat(4, 1, (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)),
    }


def rounded(x: Tensor, levels: Tensor, draws: Tensor | None = None, up: float | None = None) -> Tensor:
    """Return the codes of non-negative values: the nearest level (of two equally near, the even one), or with draws the
    next one up where the draw is below the remainder.

    Values above the largest level get the largest one. NaN gets an arbitrary code.
    """
    x = x.nan_to_num(nan=0.0).clamp(max=float(levels[-1]))
    low = (torch.searchsorted(levels, x.contiguous(), right=True) - 1).clamp(max=len(levels) - 2)
    over = (x - levels[low]) / (levels[low + 1] - levels[low])
    if up is not None:
        higher = over > 0
    elif draws is not None:
        higher = draws < over
    else:
        higher = (over > 0.5) | ((over == 0.5) & (low % 2 == 1))
    return low + higher


def signed(rows: Tensor, form: ShortFloat, draws: Tensor | None = None) -> Tensor:
    """Return the codes of values with their signs; what is not a number has none."""
    found = rounded(rows.abs(), form.table(rows.device), draws)
    return found | ((rows.signbit() & (rows == rows)).long() << (form.width - 1))


def decoded(codes: Tensor, form: ShortFloat) -> Tensor:
    """Return the values of signed codes in units of their scale; codes beyond the levels are NaN."""
    half = 1 << (form.width - 1)
    beyond = [torch.inf if form.most > 448 else torch.nan] + [torch.nan] * half
    positive = torch.tensor([*form.levels, *beyond][:half], device=codes.device)
    return torch.cat([positive, -positive])[codes]

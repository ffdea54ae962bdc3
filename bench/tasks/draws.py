"""Random numbers of a batch: they depend on their place (seed, step, worker) alone and are the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import BITS, at, key_of


def words(count: int, device: torch.device, *place: object) -> Tensor:
    """Return so many draws of 48 bits, as int64."""
    drawn = at(key_of(" ".join(map(str, place))), torch.arange(2 * count, device=device))
    return (drawn[:count] << BITS) | drawn[count:]


def below(bound: int, count: int, device: torch.device, *place: object) -> Tensor:
    """Return so many whole numbers from zero to a bound, which is far below 2^48 and never reached."""
    return words(count, device, *place) % bound


def uniform(count: int, device: torch.device, *place: object) -> Tensor:
    """Return so many numbers in [0, 1), as float64: float32 is too coarse for the tail of a skewed distribution."""
    return words(count, device, *place).double() * 2.0 ** -(2 * BITS)

"""Random rotation: a Walsh–Hadamard transform behind random signs."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import integers


def rotated_length(count: int) -> int:
    """Return the smallest power of two that holds `count` values."""
    return 1 << max(0, count - 1).bit_length()


def signs(key: int, count: int, device: torch.device) -> Tensor:
    """Return ±1 by the lowest bit of the draw of each place."""
    return (integers(key, 0, count, device) & 1).float() * 2 - 1


def hadamard(x: Tensor) -> Tensor:
    """Return the orthonormal Walsh–Hadamard transform of a vector whose length n is a power of two; it is its own
    inverse.

    It takes sums and differences of values 1 apart, then 2, 4 and so on, and at last multiplies all by 1/√n.
    """
    n, width = x.numel(), 1
    while width < n:
        pairs = x.view(-1, 2, width)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(-1)
        width *= 2
    return torch.mul(x, n**-0.5)


def rotate(x: Tensor, key: int) -> Tensor:
    """Return the transform of a vector that is padded with zeros to a power of two and multiplied by random signs."""
    padded = torch.nn.functional.pad(x, (0, rotated_length(x.numel()) - x.numel()))
    return hadamard(padded * signs(key, padded.numel(), x.device))


def rotate_back(z: Tensor, key: int) -> Tensor:
    """Return the vector that `rotate` rotated, padding included."""
    return hadamard(z) * signs(key, z.numel(), z.device)

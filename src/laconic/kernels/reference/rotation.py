"""The Walsh–Hadamard transform: of short blocks, or of a whole vector behind random signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from laconic.kernels.draws import integers, key_of
from laconic.kernels.messages import finite, written

Turned = Literal["", "before", "after"]
"""Whether values are multiplied by the signs of their places in a block, and on which side of the transform."""
BLOCK_SIGNS = key_of("signs of the places in a block")


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
    return _butterflies(x, x.numel())


def hadamard_blocks(
    xs: Sequence[Tensor],
    lengths: Sequence[int],
    block: int,
    out: Sequence[Tensor] | None = None,
    shares: Sequence[float] | None = None,
    rest: bool = False,
    turned: Turned = "",
) -> list[Tensor]:
    """Return for each vector the transforms of its blocks of so many values, a power of two; the last block is padded
    with zeros. Where they are `turned`, values are multiplied by random signs, the same in all blocks.

    Of each vector's transforms the first `length` values are returned, multiplied by the vector's share, and written to
    `out`, where these are given. With `rest` they are subtracted from `out` instead, of which what is not finite
    becomes zero.
    """
    found = []
    for i, (x, n) in enumerate(zip(xs, lengths, strict=True)):
        z = torch.nn.functional.pad(x, (0, -x.numel() % block))
        z = _turn(z, block) if turned == "before" else z
        z = _butterflies(z, block)
        z = _turn(z, block) if turned == "after" else z
        z = z[:n]
        found.append(z if shares is None else z * shares[i])
    if rest:
        assert out is not None
        return [finite(kept.sub_(z)) for kept, z in zip(out, found, strict=True)]
    return written(found, out)


def _turn(x: Tensor, block: int) -> Tensor:
    return (x.view(-1, block) * signs(BLOCK_SIGNS, block, x.device)).view(-1)


def _butterflies(x: Tensor, block: int) -> Tensor:
    width = 1
    while width < block:
        pairs = x.view(x.numel() // (2 * width), 2, width)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(-1)
        width *= 2
    return torch.mul(x, block**-0.5)


def rotate(x: Tensor, key: int) -> Tensor:
    """Return the transform of a vector that is padded with zeros to a power of two and multiplied by random signs."""
    padded = torch.nn.functional.pad(x, (0, rotated_length(x.numel()) - x.numel()))
    return hadamard(padded * signs(key, padded.numel(), x.device))


def rotate_back(z: Tensor, key: int) -> Tensor:
    """Return the vector that `rotate` rotated, padding included."""
    return hadamard(z) * signs(key, z.numel(), z.device)

"""Signs: one bit for each value."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.reference.buckets import in_buckets
from laconic.kernels.sums import rows_summed


def pack_signs(x: Tensor) -> Tensor:
    """Pack a bit per value, 1 where it is not negative, the first in a byte's lowest place."""
    bits = in_buckets((x >= 0).to(torch.uint8), 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=x.device)
    return (bits * weights).sum(dim=1, dtype=torch.uint8)


def unpack_signs(packed: Tensor, count: int) -> Tensor:
    """Return the first `count` bits of each row."""
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[..., None] >> places) & 1).flatten(-2)[..., :count]


def add_signs(total: Tensor, bits: Tensor, scale: Tensor) -> None:
    """Add scale to the total where the bit is 1, and subtract it where the bit is 0."""
    total += torch.where(unpack_signs(bits, total.numel()).bool(), scale, -scale)


def feed_signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Error feedback with signs and one scale: return the signs of v = x + error and the mean of |v|; `error` keeps v
    minus the decoded value."""
    error += x
    total = rows_summed(error.abs())
    scale = total / torch.full_like(
        total, max(1, error.numel())
    )  # a tensor, since a GPU multiplies by the inverse of a Python number
    bits = pack_signs(error)
    error -= torch.where(error >= 0, scale, -scale)
    return bits, scale


def vote(rows: Tensor) -> Tensor:
    """Return the majority of packed bits, a row for each worker; a tie gives 1.

    Nothing is unpacked: plane k holds bit k of all counts, a row is added as a carry, and counts are compared with half
    of the rows bit by bit.
    """
    planes = [torch.zeros_like(rows[0]) for _ in range(len(rows).bit_length())]
    for carry in rows:
        for k, plane in enumerate(planes):
            planes[k], carry = plane ^ carry, plane & carry
    half, reached = (len(rows) + 1) // 2, torch.full_like(rows[0], 255)
    for k, plane in enumerate(planes):
        reached = plane & reached if half >> k & 1 else plane | reached
    return reached

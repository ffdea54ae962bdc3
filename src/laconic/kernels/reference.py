"""What every hot loop computes, in plain torch: the definition that faster bodies are held against, bit by bit.

All take flat float32 tensors on any device. Buckets are consecutive elements, the last one shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.kernels.draws import uniform
from laconic.kernels.sums import rows_summed


def in_buckets(x: Tensor, bucket: int) -> Tensor:
    """A row per bucket, filled up with zeros."""
    rows = -(-x.numel() // bucket)
    return torch.nn.functional.pad(x, (0, rows * bucket - x.numel())).view(rows, bucket)


def bucket_scales(x: Tensor, bucket: int, norm: str) -> Tensor:
    """One number per bucket: its largest magnitude, or the sum of magnitudes or squares in the order of `sums`."""
    rows = in_buckets(x, bucket)
    if norm == "max":
        return rows.abs().amax(dim=1) if rows.numel() else rows.new_zeros(0)
    return rows_summed(rows.abs() if norm == "l1" else rows * rows)


def pack_signs(x: Tensor) -> Tensor:
    """A bit per value, 1 where it is not negative, the first in a byte's lowest place."""
    bits = in_buckets((x >= 0).to(torch.uint8), 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=x.device)
    return (bits * weights).sum(dim=1, dtype=torch.uint8)


def add_signs(total: Tensor, bits: Tensor, scale: Tensor) -> None:
    """total += scale where the bit is 1, -= scale where it is 0."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    positive = ((bits[:, None] >> places) & 1).view(-1)[: total.numel()].bool()
    total += torch.where(positive, scale, -scale)


def feed_signs(x: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Error feedback with a sign and one scale: v = x + error; the bits of v and the mean of |v|; what these do not say
    stays in `error`."""
    error += x
    scale = bucket_scales(error, max(1, error.numel()), "l1").sum() / max(1, error.numel())
    bits = pack_signs(error)
    error -= torch.where(error >= 0, scale, -scale)
    return bits, scale


def quantize(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """|x|·steps/scale, rounded up with the probability of its fraction, by the draw of the element's place; where x is
    negative, `steps + 1` is added."""
    factors = torch.where(scales > 0, steps / scales, torch.zeros_like(scales))
    a = x.abs() * factors.repeat_interleave(bucket)[: x.numel()]
    whole = a.floor()
    level = (whole + (uniform(key, 0, x.numel(), x.device) < a - whole)).clamp(max=steps)
    return torch.where(x < 0, level + (steps + 1), level).to(torch.uint8)


def quantize_in_nibbles(x: Tensor, scales: Tensor, bucket: int, steps: int, key: int) -> Tensor:
    """The same where a code takes at most four bits: two in a byte, the first in its lower half."""
    pairs = in_buckets(quantize(x, scales, bucket, steps, key), 2)
    return pairs[:, 0] | (pairs[:, 1] << 4)


def add_levels(total: Tensor, codes: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """total += what `quantize` wrote: level/steps of the bucket's scale, negative where the code is above `steps`."""
    levels = torch.where(codes > steps, steps + 1 - codes.float(), codes.float())
    total += levels * (1 / steps) * scales.repeat_interleave(bucket)[: total.numel()]


def add_levels_of_nibbles(total: Tensor, packed: Tensor, scales: Tensor, bucket: int, steps: int) -> None:
    """The same from two codes in a byte."""
    codes = torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[: total.numel()]
    add_levels(total, codes, scales, bucket, steps)


def select(x: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Places and values whose magnitude is at least the threshold, in order."""
    places = torch.nonzero(x.abs() >= threshold).view(-1)
    return places, x[places]


def pack_numbers(codes: Tensor, bits: int) -> Tensor:
    """Whole numbers of so many bits (at most 32) without gaps, the lowest bit first; as bytes."""
    rows = in_buckets(codes, 8)
    packed = torch.zeros(len(rows), bits, dtype=torch.int64, device=codes.device)
    for j in range(8):
        byte, shift = divmod(bits * j, 8)
        span = (shift + bits + 7) // 8
        number = rows[:, j : j + 1] << shift
        packed[:, byte : byte + span] |= number >> torch.arange(0, 8 * span, 8, device=codes.device)
    return (packed & 0xFF).to(torch.uint8).view(-1)[: -(-codes.numel() * bits // 8)]


def unpack_numbers(packed: Tensor, bits: int, count: int) -> Tensor:
    """And back: the first so many, as int64."""
    first = torch.arange(0, count * bits, bits, device=packed.device)
    byte, span = first >> 3, (bits + 14) // 8  # a number lies in at most so many bytes
    rows = torch.nn.functional.pad(packed, (0, span)).long()
    codes = rows[byte]
    for k in range(1, span):
        codes |= rows[byte + k] << (8 * k)
    return (codes >> (first & 7)) & ((1 << bits) - 1)

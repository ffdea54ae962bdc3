"""Random rounding to a table of levels, so that the mean is right; many quantisers differ only in the table."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.payload import pack, unpack
from laconic.kernels.reference import in_buckets
from laconic.registry import knob
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


def rounded(x: Tensor, table: Tensor, draws: Tensor) -> Tensor:
    """Return for each value the number of the level below it, or of the one above with the probability of the
    remainder.

    The upper level is taken where the draw is below the value's share of the gap. Levels ascend; values beyond them
    become the first or the last.
    """
    above = torch.searchsorted(table, x, right=True).clamp(1, len(table) - 1)
    low, high = table[above - 1], table[above]
    return above - 1 + (draws < (x - low) / (high - low)).long()


def lost(x: Tensor, table: Tensor) -> Tensor:
    """Return the variance that such rounding adds to each value: (high - x)(x - low), exactly."""
    above = torch.searchsorted(table, x, right=True).clamp(1, len(table) - 1)
    return (table[above] - x) * (x - table[above - 1])


def mirrored(positive: Tensor) -> Tensor:
    """Return these levels and their mirror images below zero."""
    return torch.cat([-positive.flip(0), positive])


def omega(table: Tensor, count: int) -> float:
    """Return ω of rounding shares of a norm of `count` values, l2 or the largest magnitude, to levels from -1 to 1.

    It is a quarter of the widest gap squared for each value; or, if less, the largest loss between two levels in
    proportion to the value's square, and for values next to zero the loss of that gap.
    """
    levels = table.double()
    flat = count * float(levels.diff().max()) ** 2 / 4
    sides = [levels[levels > 0], -levels[levels < 0].flip(0)]
    outer = max(float(((s[1:] - s[:-1]) ** 2 / (4 * s[1:] * s[:-1])).max()) if len(s) > 1 else 0.0 for s in sides)
    if bool((levels == 0).any()):
        first = max(float(side[0]) for side in sides)
        inner = min(count * first**2 / 4, math.sqrt(count) * first)
    else:
        inner = count * sum(float(side[0]) for side in sides) ** 2 / 4
    return min(flat, outer + inner)


def bucket_norms(flat: Tensor, bucket: int, norm: str) -> Tensor:
    """Return each bucket's largest magnitude, or its l2 norm, computed from shares of the former so that no square
    overflows."""
    most = kernels.bucket_scales(flat, bucket, "max")
    if norm == "max":
        return most
    shares = flat / spread(most, bucket, flat.numel())
    return most * kernels.bucket_scales(shares, bucket, "l2").sqrt()


def spread(scales: Tensor, bucket: int, count: int) -> Tensor:
    """Return for each element its bucket's scale as a divisor, which is 1 where the scale is zero."""
    return scales.where(scales != 0, 1).repeat_interleave(bucket)[:count]


@dataclass(frozen=True)
class Tabled(Codec):
    """A codec that sends for each value the number of a level, and for each bucket the scale of the levels.

    The scale is the bucket's l2 norm or largest magnitude (levels from -1 to 1), or its smallest and largest value
    (levels from 0 to 1). A bucket that contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    bucket: int = knob(0, low=0, doc="elements that share a scale; 0: the whole tensor")

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The levels in ascending order."""

    @property
    def scale(self) -> str:
        """What levels are shares of: l2, max or range."""
        return "max"

    @property
    def width(self) -> int:
        """The number of bits of a level's number."""
        return bits.width(len(self.table) - 1)

    @property
    def unit(self) -> int:
        return math.lcm(max(1, self.bucket), 8)

    def of_bucket(self, numel: int) -> int:
        """Return the number of elements that share a scale."""
        return self.bucket or max(1, numel)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        scales = self.scales(flat)
        codes = self.coded(flat, scales, kernels.uniform(meet.key(), 0, flat.numel(), x.device))
        return pack(bits.pack(codes, self.width), scales)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n = shape.numel()
        count = self.count(n)
        packed, scales = unpack(payload, (torch.uint8, bits.length(n, self.width)), (torch.float32, count))
        return self.decoded(bits.unpack(packed, self.width, n).long(), scales).view(shape)

    def count(self, numel: int) -> int:
        """Return the number of scales."""
        return -(-numel // self.of_bucket(numel)) * (2 if self.scale == "range" else 1)

    def scales(self, flat: Tensor) -> Tensor:
        """Return one scale for each bucket; for a range the lower ends of all buckets, then the upper ones."""
        bucket = self.of_bucket(flat.numel())
        if self.scale != "range":
            return bucket_norms(flat, bucket, self.scale)
        rows = in_buckets(flat, bucket)
        beyond = in_buckets(torch.ones_like(flat), bucket) == 0
        high = rows.masked_fill(beyond, -math.inf).amax(dim=1)
        return torch.cat([rows.masked_fill(beyond, math.inf).amin(dim=1), high])

    def coded(self, flat: Tensor, scales: Tensor, draws: Tensor) -> Tensor:
        """Return the numbers of levels, for these draws from [0, 1)."""
        n, table = flat.numel(), self.table.to(flat.device)
        bucket = self.of_bucket(n)
        if self.scale != "range":
            return rounded(flat / spread(scales, bucket, n), table, draws)
        low, high = (scales / 2).view(2, -1)  # the span itself may be too large for a float
        shares = (flat / 2 - low.repeat_interleave(bucket)[:n]) / spread(high - low, bucket, n)
        return rounded(shares, table, draws)

    def decoded(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Return the values that these numbers of levels stand for."""
        n, levels = codes.numel(), self.table.to(codes.device)[codes]
        bucket = self.of_bucket(n)
        if self.scale != "range":
            return levels * scales.repeat_interleave(bucket)[:n]
        low, high = (end.repeat_interleave(bucket)[:n] for end in scales.view(2, -1))
        between: Tensor = low * (1 - levels) + high * levels
        return between

    def variance(self, spec: TensorSpec) -> float | None:
        count = min(self.of_bucket(spec.numel), spec.numel)
        if self.scale == "range":  # at most √2 of the norm
            return count * float(self.table.diff().max()) ** 2 / 2
        return omega(self.table, count)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return bits.length(spec.numel, self.width) + 4 * self.count(spec.numel)

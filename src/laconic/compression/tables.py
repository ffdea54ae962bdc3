"""Rounding to a table of levels at random, so that the mean is right: what many quantisers differ in is the table."""

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
    """For each value the number of the level below it, or of the one above where the draw is less than what the value
    has of the way there. Levels ascend; beyond them values become the first or the last."""
    above = torch.searchsorted(table, x, right=True).clamp(1, len(table) - 1)
    low, high = table[above - 1], table[above]
    return above - 1 + (draws < (x - low) / (high - low)).long()


def lost(x: Tensor, table: Tensor) -> Tensor:
    """What such rounding adds to each value's square in the mean: (high - x)(x - low), exactly."""
    above = torch.searchsorted(table, x, right=True).clamp(1, len(table) - 1)
    return (table[above] - x) * (x - table[above - 1])


def mirrored(positive: Tensor) -> Tensor:
    """The same levels on both sides of zero."""
    return torch.cat([-positive.flip(0), positive])


def omega(table: Tensor, count: int) -> float:
    """Of rounding shares of a norm of `count` values, their l2 norm or their largest magnitude, to levels from -1 to 1.

    A quarter of the widest gap squared for each value; or, if less, what a level above or below costs in proportion to
    the value's square, and for values beside zero that gap's own, which they lose at most.
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
    """The largest magnitude of each bucket, or the l2 norm: from shares of it, so that no square overflows."""
    most = kernels.bucket_scales(flat, bucket, "max")
    if norm == "max":
        return most
    shares = flat / spread(most, bucket, flat.numel())
    return most * kernels.bucket_scales(shares, bucket, "l2").sqrt()


def spread(scales: Tensor, bucket: int, count: int) -> Tensor:
    """Each bucket's for its elements, as something to divide by: 1 where there is nothing."""
    return scales.where(scales != 0, 1).repeat_interleave(bucket)[:count]


@dataclass(frozen=True)
class Tabled(Codec):
    """The number of a level for each value, in as many bits as that takes, and what levels are shares of for each
    bucket: its l2 norm or largest magnitude (levels from -1 to 1), or its least and largest value (from 0 to 1).

    A bucket with a value that is not finite is not finite.
    """

    cost: ClassVar[str] = "reduce"
    bucket: int = knob(0, low=0, doc="elements that share a scale; 0: the whole tensor")

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """Levels in ascending order."""

    @property
    def scale(self) -> str:
        """What they are shares of: l2, max or range."""
        return "max"

    @property
    def width(self) -> int:
        """Bits of a level's number."""
        return bits.width(len(self.table) - 1)

    @property
    def unit(self) -> int:
        return math.lcm(max(1, self.bucket), 8)

    def of_bucket(self, numel: int) -> int:
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
        return self.said(bits.unpack(packed, self.width, n).long(), scales).view(shape)

    def count(self, numel: int) -> int:
        """Of scales."""
        return -(-numel // self.of_bucket(numel)) * (2 if self.scale == "range" else 1)

    def scales(self, flat: Tensor) -> Tensor:
        """One a bucket; of a range its lower ends, then its upper ones."""
        bucket = self.of_bucket(flat.numel())
        if self.scale != "range":
            return bucket_norms(flat, bucket, self.scale)
        rows = in_buckets(flat, bucket)
        beyond = in_buckets(torch.ones_like(flat), bucket) == 0
        high = rows.masked_fill(beyond, -math.inf).amax(dim=1)
        return torch.cat([rows.masked_fill(beyond, math.inf).amin(dim=1), high])

    def coded(self, flat: Tensor, scales: Tensor, draws: Tensor) -> Tensor:
        """Numbers of levels, for these draws from [0, 1)."""
        n, table = flat.numel(), self.table.to(flat.device)
        bucket = self.of_bucket(n)
        if self.scale != "range":
            return rounded(flat / spread(scales, bucket, n), table, draws)
        low, high = (scales / 2).view(2, -1)  # the span itself may be too large for a float
        shares = (flat / 2 - low.repeat_interleave(bucket)[:n]) / spread(high - low, bucket, n)
        return rounded(shares, table, draws)

    def said(self, codes: Tensor, scales: Tensor) -> Tensor:
        """The values that these numbers stand for."""
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

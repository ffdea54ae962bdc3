"""Casts: the same numbers in a shorter floating-point format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload
from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.codec import Codec
from laconic.compression.payload import unpack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


class Cast(Codec):
    """A shorter floating-point format on the wire, summed in it; divided before the cast, so that large values survive.

    In a longer chain (`topk+bf16`, `bf16+two_hop`) it is only the format of the values, and sums are made in float32.
    """

    wire: ClassVar[torch.dtype]

    @property
    def meets(self) -> Meets:
        return "reduce"

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype.itemsize > self.wire.itemsize

    def shorten(self, x: Tensor, meet: Meet) -> Tensor:
        """Return the values in the format that is sent."""
        return x.to(self.wire)

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        return self.shorten(x, meet).reshape(-1).view(torch.uint8)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        (short,) = unpack(payload, (self.wire, shape.numel()))
        return short.float().view(shape)

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        share = self.shorten(x / meet.size, meet)
        own = share.to(x.dtype) * meet.size
        mean = yield meet.sum(share)
        return Outcome(mean.to(x.dtype), state, sent=own)

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return self._exchange_bucket(bucket, meet) if self.nearest else None

    def _exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange:
        flat, share = bucket.flat, bucket.buffer("share", bucket.flat.numel(), self.wire)
        kernels.shorten(flat, meet.size, share)
        own = share.to(flat.dtype).mul_(meet.size) if meet.own else None
        kernels.lengthen((yield meet.sum(share)), flat)
        return own

    @property
    def nearest(self) -> bool:
        """Whether a value's format depends on the value alone."""
        return True

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel * min(self.wire.itemsize, spec.dtype.itemsize)


@technique(
    "cast_fp16",
    aliases=["fp16", "half"],
    paper="Micikevicius et al., ICLR 2018; PyTorch DDP's fp16 hook",
    claims=[Payload(lambda spec, c: 2 * spec.numel)],
    holds="IEEE 754 binary16: largest 65,504, least normal 2^-14, least 2^-24, relative error 2^-11",
    formula="Q(x)_i = x_i/N rounded to binary16, 11 bits of precision, and summed so",
    worth_trying=["cast_fp16"],
)
@dataclass(frozen=True)
class CastFP16(Cast):
    """16-bit IEEE floats on the wire: 11 bits of precision, overflow above 65,504."""

    wire: ClassVar[torch.dtype] = torch.float16


@technique(
    "cast_bf16",
    aliases=["bf16", "bfloat16"],
    paper="Kalamkar et al., arXiv 1905.12322",
    claims=[Payload(lambda spec, c: 2 * spec.numel)],
    holds="bfloat16's constants: largest 7F7F (3.39e38), least 0001, one 3F80; relative error 2^-8",
    formula="Q(x)_i = x_i/N rounded to float32's range with 8 bits of precision, and summed so",
    worth_trying=["cast_bf16"],
)
@dataclass(frozen=True)
class CastBF16(Cast):
    """16-bit brain floats on the wire: float32's range with 8 bits of precision.

    Sums are made in bf16 by the collective, which loses small addends after a few workers; `bf16+two_hop` adds up in
    float32. Rounding is to the nearest, or at random so that the mean is right.
    """

    wire: ClassVar[torch.dtype] = torch.bfloat16
    rounding: str = knob(
        "nearest", choices=("nearest", "stochastic"), doc="how values between two representable ones are rounded"
    )

    @property
    def nearest(self) -> bool:
        return self.rounding == "nearest"

    def shorten(self, x: Tensor, meet: Meet) -> Tensor:
        if self.nearest:
            return x.to(self.wire)
        pattern = x.float().contiguous().view(torch.int32)
        draws = (kernels.integers(meet.key(), 0, x.numel(), x.device) >> 8).to(torch.int32).view_as(pattern)
        raised = torch.where(x.isfinite(), pattern + draws, pattern)
        return (raised & ~0xFFFF).view(torch.float32).to(self.wire)

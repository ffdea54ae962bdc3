"""Casts: the same numbers in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.claims import Payload
from laconic.compression.base import Compressor, Exchange, Outcome, State, TensorSpec
from laconic.registry import technique
from laconic.worker import Meet


class Cast(Compressor):
    """Send a shorter floating-point format and sum in it; divided before the cast, so that large values survive."""

    wire: ClassVar[torch.dtype]

    def accepts(self, spec: TensorSpec) -> bool:
        return spec.dtype.itemsize > self.wire.itemsize

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        share = (x / meet.size).to(self.wire)
        own = share.to(x.dtype) * meet.size
        mean = yield meet.sum(share)
        return Outcome(mean.to(x.dtype), state, sent=own)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel * min(self.wire.itemsize, spec.dtype.itemsize)


@technique(
    "cast_fp16",
    aliases=["fp16", "half"],
    paper="Micikevicius et al., ICLR 2018; PyTorch DDP's fp16 hook",
    claims=[Payload(lambda spec, c: 2 * spec.numel)],
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
)
@dataclass(frozen=True)
class CastBF16(Cast):
    """16-bit brain floats on the wire: float32's range with 8 bits of precision.

    Sums are made in bf16 by the collective; stochastic rounding and float32 accumulation are not offered yet.
    """

    wire: ClassVar[torch.dtype] = torch.bfloat16

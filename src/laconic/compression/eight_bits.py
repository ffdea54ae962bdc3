"""Eight bits a value: integers or short floats, scaled by the largest magnitude of a block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.block_codec import BlockCodec
from laconic.compression.bucket import BucketExchange, BucketMeet, TensorBucket
from laconic.compression.optional import contraction_from
from laconic.compression.payload import pack, unpack
from laconic.kernels import BlockFormat
from laconic.kernels.reference import in_buckets
from laconic.kernels.reference.blocks import integer_codes, integer_values, shares
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@dataclass(frozen=True)
class EightBits(BlockCodec):
    """A codec of one byte a value and a scale for each block; a block with a value that is not finite decodes to values
    that are not finite."""

    cost: ClassVar[str] = "reduce"
    block: int = knob(0, low=0, doc="elements that share a scale; 0: the whole tensor")

    @property
    def unit(self) -> int:
        return max(1, self.block)

    def _block(self, numel: int) -> int:
        return self.block or max(1, numel)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return spec.numel + 4 * -(-spec.numel // self._block(spec.numel))


@technique(
    "cast_int8",
    aliases=["int8"],
    paper="Dettmers, ICLR 2016 (8-bit approximations for parallelism)",
    formula="Q(x)_i = (s/127)·round(127·x_i/s), s = max|block|",
    worth_trying=["cast_int8"],
)
@dataclass(frozen=True)
class CastInt8(EightBits):
    """Integer multiples of 1/127 of the largest magnitude, rounded to the nearest or at random.

    Rounding at random keeps the mean right. Each worker has scales of its own, so that codes cannot be added by the
    collective: `int8` gathers, `int8+two_hop` sends less. With `shared` scales, the largest of all workers', codes are
    summed as integers of 32 bits: no fewer bytes than float32, but the same sum in any order.
    """

    rounding: str = knob("nearest", choices=("nearest", "stochastic"), doc="how values between two codes are rounded")
    shared: bool = knob(False, doc="whether all workers use the same scales, so that codes are summed")

    @property
    def meets(self) -> Meets:
        return "reduce" if self.shared else "gather"

    @property
    def layout(self) -> BlockFormat:
        return BlockFormat("int8", "float32", self.block, self.rounding == "stochastic")

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return self._summed(x, state, meet) if self.shared else super().exchange(x, state, meet)

    def exchange_bucket(self, bucket: TensorBucket, meet: BucketMeet) -> BucketExchange | None:
        return None if self.shared else super().exchange_bucket(bucket, meet)

    def _summed(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, block = x.reshape(-1).float(), self._block(x.numel())
        most = (yield meet.max(kernels.bucket_scales(flat, block, "max")))[:, None]
        rows, draws = in_buckets(flat, block), None
        if self.rounding == "stochastic":
            draws = kernels.uniform(meet.key(), 0, rows.numel(), rows.device).view_as(rows)
        codes = integer_codes(rows, most, draws)
        total = yield meet.sum(codes.view(torch.int8).reshape(-1)[: flat.numel()].to(torch.int32))
        mean = in_buckets(total, block) * (most / 127) / meet.size
        result, sent = (v.reshape(-1)[: flat.numel()].view(x.shape) for v in (mean, integer_values(codes, most)))
        return Outcome(result.to(x.dtype), state, sent.to(x.dtype))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        return super().payload_bytes(spec, size) + 3 * spec.numel * self.shared

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω: each value loses at most a quarter of a squared step, and the largest of a block is exact."""
        block = self._block(spec.numel)
        return min(block, spec.numel) / 4 / 127**2 if self.rounding == "stochastic" else None

    def contraction(self, spec: TensorSpec) -> float | None:
        if self.rounding == "stochastic":
            return contraction_from(self.variance(spec))
        left = min(self._block(spec.numel), spec.numel) / 4 / 127**2
        return 1 - left if left < 1 else None


@technique(
    "cast_fp8",
    aliases=["fp8"],
    paper="Micikevicius et al., arXiv 2209.05433",
    holds="the formats' table: E4M3 448, 2^-6, 2^-9; E5M2 57,344, 2^-14, 2^-16; relative error 2^-4 and 2^-3",
    formula="Q(x)_i = (s/F)·fp8(F·x_i/s), s = max|block|, F the format's largest",
    worth_trying=["cast_fp8"],
)
@dataclass(frozen=True)
class CastFP8(EightBits):
    """Eight-bit floats, scaled so that the largest magnitude is the format's: e5m2 for range, e4m3 for precision.

    No collective adds them: they are gathered, or exchanged in two hops (`fp8+two_hop`), and are summed in float32.
    Reading chosen: one scale a tensor.
    """

    format: str = knob("e5m2", choices=("e4m3", "e5m2"), doc="bits of exponent (e) and mantissa (m)")

    @property
    def layout(self) -> BlockFormat:
        return BlockFormat(self.format, "float32", self.block)


@cache
def dynamic_code() -> Tensor:
    """Return 256 points from -1 to 1 in ascending order, denser near zero.

    They are zero, 1 and on both sides, in each of seven decades, the middles of equal parts between a tenth and all of
    it, twice as many as in the decade below.
    """
    decades = [10.0 ** (e - 6) * (0.1 + 0.9 * (torch.arange(2.0**e) + 0.5) / 2**e) for e in range(7)]
    positive = torch.cat(decades)
    return torch.cat([-positive.flip(0), torch.zeros(1), positive, torch.ones(1)])


@technique(
    "blockwise_8bit",
    paper="Ryabinin, Dettmers, Diskin, Borzunov (SWARM), ICML 2023",
    formula="Q(x)_i = s·c, c the nearest of 256 points, denser near zero, to x_i/s, s = max|block|",
    worth_trying=["blockwise_8bit"],
)
@dataclass(frozen=True)
class BlockwiseEightBits(EightBits):
    """The nearest of 256 points that reach over seven decades, as shares of a block's largest magnitude.

    An outlier spoils its own block and no other. Reading chosen: blocks of 4096, and the dynamic code of 8-bit
    optimizers with seven bits of exponent.
    """

    block: int = knob(4096, low=0, doc="elements that share a scale; 0: the whole tensor")

    @property
    def layout(self) -> None:
        return None

    def encode_apart(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        block = self._block(flat.numel())
        scales, points = kernels.bucket_scales(flat, block, "max"), dynamic_code().to(x.device)
        parts = shares(in_buckets(flat, block), scales[:, None])
        codes = torch.bucketize(parts, (points[1:] + points[:-1]) / 2).to(torch.uint8)
        return pack(codes.reshape(-1)[: flat.numel()], scales)

    def decode_apart(self, payload: Tensor, shape: torch.Size) -> Tensor:
        n = shape.numel()
        block = self._block(n)
        codes, scales = unpack(payload, (torch.uint8, n), (torch.float32, -(-n // block)))
        values = dynamic_code().to(payload.device)[in_buckets(codes, block).long()] * scales[:, None]
        return values.reshape(-1)[:n].view(shape)

"""Eight bits a value: integers or short floats, scaled by the largest magnitude of a block."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.base import Exchange, Outcome, State
from laconic.compression.codec import Codec
from laconic.compression.optional import contraction_from
from laconic.compression.payload import pack, unpack
from laconic.kernels.reference import in_buckets
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet, Meets


@dataclass(frozen=True)
class EightBits(Codec):
    """A codec of one byte a value and a scale for each block; a block with a value that is not finite decodes to values
    that are not finite."""

    cost: ClassVar[str] = "reduce"
    block: int = knob(0, low=0, doc="elements that share a scale; 0: the whole tensor")

    @property
    def unit(self) -> int:
        return max(1, self.block)

    def _block(self, numel: int) -> int:
        return self.block or max(1, numel)

    @abstractmethod
    def write(self, rows: Tensor, most: Tensor, meet: Meet) -> Tensor:
        """Return a byte for each of these values, which lie between plus and minus `most`, in rows."""

    @abstractmethod
    def read(self, codes: Tensor, most: Tensor) -> Tensor:
        """Return the values of rows of bytes."""

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat = x.reshape(-1)
        block = self._block(flat.numel())
        scales = kernels.bucket_scales(flat, block, "max")
        rows = in_buckets(flat, block)
        codes = self.write(rows, scales[:, None], meet).reshape(-1)[: flat.numel()]
        return pack(codes, scales)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n = shape.numel()
        block = self._block(n)
        codes, scales = unpack(payload, (torch.uint8, n), (torch.float32, -(-n // block)))
        return self.read(in_buckets(codes, block), scales[:, None]).reshape(-1)[:n].view(shape)

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

    def exchange(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        return self._summed(x, state, meet) if self.shared else super().exchange(x, state, meet)

    def _summed(self, x: Tensor, state: State, meet: Meet) -> Exchange:
        flat, block = x.reshape(-1).float(), self._block(x.numel())
        most = (yield meet.max(kernels.bucket_scales(flat, block, "max")))[:, None]
        codes = self.write(in_buckets(flat, block), most, meet)
        total = yield meet.sum(codes.view(torch.int8).reshape(-1)[: flat.numel()].to(torch.int32))
        mean = in_buckets(total, block) * (most / 127) / meet.size
        result, sent = (v.reshape(-1)[: flat.numel()].view(x.shape) for v in (mean, self.read(codes, most)))
        return Outcome(result.to(x.dtype), state, sent.to(x.dtype))

    def write(self, rows: Tensor, most: Tensor, meet: Meet) -> Tensor:
        levels = _shares(rows, most) * 127
        if self.rounding == "nearest":
            codes = levels.round()
        else:
            draws = kernels.uniform(meet.key(), 0, levels.numel(), levels.device).view_as(levels)
            codes = (levels + draws).floor()
        return codes.nan_to_num(0.0).clamp(-127, 127).to(torch.int8).view(torch.uint8)

    def read(self, codes: Tensor, most: Tensor) -> Tensor:
        return codes.view(torch.int8).float() * (most / 127)

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


_FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@technique(
    "cast_fp8",
    aliases=["fp8"],
    paper="Micikevicius et al., arXiv 2209.05433",
    evidence="published",
    reproduces="the formats' table: E4M3 448, 2^-6, 2^-9; E5M2 57,344, 2^-14, 2^-16; relative error 2^-4 and 2^-3",
    formula="Q(x)_i = (s/F)·fp8(F·x_i/s), s = max|block|, F the format's largest",
    worth_trying=["cast_fp8"],
)
@dataclass(frozen=True)
class CastFP8(EightBits):
    """Eight-bit floats, scaled so that the largest magnitude is the format's: e5m2 for range, e4m3 for precision.

    No collective adds them: they are gathered, or exchanged in two hops (`fp8+two_hop`), and are summed in float32.
    Reading chosen: one scale a tensor.
    """

    format: str = knob("e5m2", choices=tuple(_FORMATS), doc="bits of exponent (e) and mantissa (m)")

    @property
    def _most(self) -> float:
        return torch.finfo(_FORMATS[self.format]).max

    def write(self, rows: Tensor, most: Tensor, meet: Meet) -> Tensor:
        scaled = _shares(rows, most) * self._most
        return scaled.clamp(-self._most, self._most).to(_FORMATS[self.format]).view(torch.uint8)

    def read(self, codes: Tensor, most: Tensor) -> Tensor:
        return codes.view(_FORMATS[self.format]).float() * (1 / self._most) * most


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

    def write(self, rows: Tensor, most: Tensor, meet: Meet) -> Tensor:
        points = dynamic_code().to(rows.device)
        return torch.bucketize(_shares(rows, most), (points[1:] + points[:-1]) / 2).to(torch.uint8)

    def read(self, codes: Tensor, most: Tensor) -> Tensor:
        return dynamic_code().to(codes.device)[codes.long()] * most


def _shares(rows: Tensor, most: Tensor) -> Tensor:
    """Return values as shares of the largest, by division: the reciprocal may be too large for a float."""
    return rows / most.where(most > 0, 1)

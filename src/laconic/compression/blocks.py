"""Short floats that share a scale in small blocks, as hardware computes with them: MXFP8, MXFP4, NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.block_codec import BlockCodec
from laconic.compression.codes import bits
from laconic.compression.optional import contraction_from
from laconic.compression.payload import pack, unpack
from laconic.kernels import BlockFormat
from laconic.kernels.reference import in_buckets
from laconic.kernels.reference.short_floats import ShortFloat, decoded, rounded, short_floats, signed
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@cache
def formats() -> dict[str, ShortFloat]:
    """Return the formats of values by the name of the format of blocks."""
    short = short_floats()
    return {"mxfp8": short["e4m3"], "mxfp8_e5m2": short["e5m2"], "mxfp4": short["e2m1"], "nvfp4": short["e2m1"]}


@technique(
    "mx_block_codecs",
    aliases=["mx"],
    paper="OCP Microscaling Formats (MX) v1.0, 2023; NVIDIA NVFP4, 2025",
    holds="OCP MX v1.0: E2M1's table, ends of E4M3 and E5M2, E8M0's scales; 8.25, 4.25 and 4.5 bits a value",
    formula="Q(x)_i = X·float(x_i/X), X one scale for 32 values: a power of two (nvfp4: E4M3, for 16)",
    worth_trying=["mx_block_codecs(mxfp4)+ef"],
)
@dataclass(frozen=True)
class Blocks(BlockCodec):
    """Floats of eight or four bits with one scale for each small block (MXFP8, MXFP4, NVFP4).

    Payloads are gathered, or exchanged in two hops. MX: blocks of 32, whose scale is a power of two in a byte. NVFP4:
    blocks of 16, whose scale is an E4M3 float, and a float32 for the tensor. With `scale=ceil` no value is cut, so that
    stochastic rounding is right in the mean; `scale=floor` is the standard's rule (for nvfp4 the nearest scale), which
    may cut the largest value. Reading chosen: ceil. The last block may be shorter. A block (nvfp4: a tensor) that
    contains a value that is not finite decodes to values that are not finite.
    """

    cost: ClassVar[str] = "reduce"
    format: str = knob("mxfp8", choices=("mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"), doc="format of values and scales")
    rounding: str = knob(
        "nearest", choices=("nearest", "stochastic"), doc="how values between two representable ones are rounded"
    )
    scale: str = knob("ceil", choices=("ceil", "floor"), doc="which scale a block's largest magnitude gets")

    @property
    def unit(self) -> int:
        return 16 if self.format == "nvfp4" else 32

    @property
    def layout(self) -> BlockFormat | None:
        if self.format == "nvfp4":
            return None
        values = {"mxfp8": "e4m3", "mxfp8_e5m2": "e5m2", "mxfp4": "e2m1"}[self.format]
        return BlockFormat(values, "e8m0", self.unit, self.rounding == "stochastic", self.scale == "ceil")

    @property
    def _format(self) -> ShortFloat:
        return formats()[self.format]

    @property
    def _head(self) -> int:
        """The number of four-byte numbers that belong to the tensor as a whole."""
        return int(self.format == "nvfp4")

    def encode_apart(self, x: Tensor, meet: Meet) -> Tensor:
        flat, form = x.reshape(-1), self._format
        largest = kernels.bucket_scales(flat, self.unit, "max")
        whole = largest.amax().div(448 * form.most).view(1)
        scales = self._scales(largest, whole)
        rows = in_buckets(flat, self.unit) / _divisors(self._values(scales, whole))[:, None]
        draws = None
        if self.rounding == "stochastic":
            draws = kernels.uniform(meet.key(), 0, rows.numel(), rows.device).view_as(rows)
        codes = signed(rows, form, draws).reshape(-1)[: flat.numel()]
        return pack(bits.pack(codes, form.width), scales, whole)

    def decode_apart(self, payload: Tensor, shape: torch.Size) -> Tensor:
        n, form = shape.numel(), self._format
        packed, scales, whole = unpack(
            payload, (torch.uint8, bits.length(n, form.width)), (torch.uint8, -(-n // self.unit)), (torch.float32, 1)
        )
        codes = bits.unpack(packed, form.width, n).long()
        return (decoded(codes, form) * self._values(scales, whole).repeat_interleave(self.unit)[:n]).view(shape)

    def _scales(self, largest: Tensor, whole: Tensor) -> Tensor:
        """Return a byte for each block of nvfp4: the code of its scale."""
        shares = largest / (self._format.most * _divisors(whole))
        table = formats()["mxfp8"].table(shares.device)
        return rounded(shares, table, up=1.0 if self.scale == "ceil" else None).to(torch.uint8)

    def _values(self, scales: Tensor, whole: Tensor) -> Tensor:
        """Return the scales that such bytes stand for."""
        return scales.view(torch.float8_e4m3fn).float() * whole

    def variance(self, spec: TensorSpec) -> float | None:
        """Return ω: a value above the smallest level is off by at most an eighth of its square, one below it by a
        quarter of that level's square, while the block's largest is at least half of the format's."""
        return self._left(spec, 1 / 8) if self.rounding == "stochastic" and self.scale == "ceil" else None

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ: rounding to the nearest is off by half a step, at most a third of a value above the smallest
        level."""
        if self.rounding == "stochastic":
            return contraction_from(self.variance(spec))
        return 1 - self._left(spec, 1 / 9)

    def _left(self, spec: TensorSpec, each: float) -> float:
        form = self._format
        few = max(0, min(self.unit, spec.numel) - 1)
        return each + few * (form.levels[1] / form.most) ** 2 + self._head * spec.numel * 1e-12

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        form = self._format
        return bits.length(spec.numel, form.width) + -(-spec.numel // self.unit) + 4 * self._head


def _divisors(scales: Tensor) -> Tensor:
    return scales.where(scales > 0, 1)

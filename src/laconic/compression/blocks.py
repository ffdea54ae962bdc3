"""Short floats that share a scale in small blocks, as hardware computes with them: MXFP8, MXFP4, NVFP4."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from laconic import kernels
from laconic.compression.codec import Codec
from laconic.compression.codes import bits
from laconic.compression.optional import contraction_from
from laconic.compression.payload import pack, unpack
from laconic.kernels.reference import in_buckets
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NO_NUMBER = 255  # E8M0's code for what is not finite
_BIAS = 127


@dataclass(frozen=True)
class Format:
    """A format of short floats: its non-negative values in the order of their codes; the bit above is the sign."""

    width: int
    levels: tuple[float, ...]
    block: int = 32

    @property
    def most(self) -> float:
        return self.levels[-1]

    def table(self, device: torch.device) -> Tensor:
        return torch.tensor(self.levels, device=device)


@cache
def formats() -> dict[str, Format]:
    """Return the formats by name."""

    def eight(kind: torch.dtype) -> Format:
        every = torch.arange(128, dtype=torch.uint8).view(kind).float()
        return Format(8, tuple(every[every.isfinite()].tolist()))

    return {
        "mxfp8": eight(torch.float8_e4m3fn),
        "mxfp8_e5m2": eight(torch.float8_e5m2),
        "mxfp4": Format(4, _E2M1),
        "nvfp4": Format(4, _E2M1, 16),
    }


@technique(
    "mx_block_codecs",
    aliases=["mx"],
    paper="OCP Microscaling Formats (MX) v1.0, 2023; NVIDIA NVFP4, 2025",
    evidence="published",
    reproduces="OCP MX v1.0: E2M1's table, ends of E4M3 and E5M2, E8M0's scales; 8.25, 4.25 and 4.5 bits a value",
    formula="Q(x)_i = X·float(x_i/X), X one scale for 32 values: a power of two (nvfp4: E4M3, for 16)",
    worth_trying=["mx_block_codecs(mxfp4)+ef"],
)
@dataclass(frozen=True)
class Blocks(Codec):
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
        return self._format.block

    @property
    def _format(self) -> Format:
        return formats()[self.format]

    @property
    def _head(self) -> int:
        """The number of four-byte numbers that belong to the tensor as a whole."""
        return int(self.format == "nvfp4")

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        flat, form = x.reshape(-1), self._format
        largest = kernels.bucket_scales(flat, form.block, "max")
        whole = largest.amax().div(448 * form.most).view(1)[: self._head]
        scales = self.scales(largest, whole)
        rows = in_buckets(flat, form.block) / _divisors(self.values(scales, whole))[:, None]
        codes = self.codes(rows, meet).reshape(-1)[: flat.numel()]
        return pack(bits.pack(codes, form.width), scales, whole)

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        n, form = shape.numel(), self._format
        packed, scales, whole = unpack(
            payload,
            (torch.uint8, bits.length(n, form.width)),
            (torch.uint8, -(-n // form.block)),
            (torch.float32, self._head),
        )
        codes = bits.unpack(packed, form.width, n).long()
        values = decoded(codes, form) * self.values(scales, whole).repeat_interleave(form.block)[:n]
        return values.view(shape)

    def scales(self, largest: Tensor, whole: Tensor) -> Tensor:
        """Return a byte for each block: the code of its scale."""
        form = self._format
        if self._head:
            shares = largest / (form.most * _divisors(whole))
            codes = rounded(shares, formats()["mxfp8"].table(shares.device), up=1.0 if self.scale == "ceil" else None)
            return codes.to(torch.uint8)
        mantissa, exponent = torch.frexp(largest)
        top, power = torch.frexp(torch.tensor(form.most))
        codes = exponent - power + _BIAS
        if self.scale == "ceil":
            codes += mantissa > top
        codes = torch.where(largest > 0, codes.clamp(0, _NO_NUMBER - 1), 0)
        return torch.where(largest.isfinite(), codes, _NO_NUMBER).to(torch.uint8)

    def values(self, scales: Tensor, whole: Tensor) -> Tensor:
        """Return the scales that these bytes stand for."""
        if self._head:
            return scales.view(torch.float8_e4m3fn).float() * whole
        powers = torch.ldexp(torch.ones_like(scales, dtype=torch.float32), scales.int() - _BIAS)
        return torch.where(scales == _NO_NUMBER, torch.nan, powers)

    def codes(self, rows: Tensor, meet: Meet) -> Tensor:
        """Return the codes of values in units of their block's scale."""
        form = self._format
        draws = None
        if self.rounding == "stochastic":
            draws = kernels.uniform(meet.key(), 0, rows.numel(), rows.device).view_as(rows)
        found = rounded(rows.abs(), form.table(rows.device), draws)
        return found | (rows.signbit().long() << (form.width - 1))

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
        few = max(0, min(form.block, spec.numel) - 1)
        return each + few * (form.levels[1] / form.most) ** 2 + self._head * spec.numel * 1e-12

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        form = self._format
        return bits.length(spec.numel, form.width) + -(-spec.numel // form.block) + 4 * self._head


def rounded(x: Tensor, levels: Tensor, draws: Tensor | None = None, up: float | None = None) -> Tensor:
    """Return the codes of non-negative values: the nearest level (of two equally near, the even one), or with draws the
    next one up where the draw is below the remainder.

    Values above the largest level get the largest one. NaN gets an arbitrary code.
    """
    x = x.nan_to_num(nan=0.0).clamp(max=float(levels[-1]))
    low = (torch.searchsorted(levels, x.contiguous(), right=True) - 1).clamp(max=len(levels) - 2)
    over = (x - levels[low]) / (levels[low + 1] - levels[low])
    if up is not None:
        higher = over > 0
    elif draws is not None:
        higher = draws < over
    else:
        higher = (over > 0.5) | ((over == 0.5) & (low % 2 == 1))
    return low + higher


def decoded(codes: Tensor, form: Format) -> Tensor:
    """Return the values of signed codes in units of their scale; codes beyond the levels are NaN."""
    half = 1 << (form.width - 1)
    beyond = [torch.inf if form.most > 448 else torch.nan] + [torch.nan] * half
    positive = torch.tensor([*form.levels, *beyond][:half], device=codes.device)
    return torch.cat([positive, -positive])[codes]


def _divisors(scales: Tensor) -> Tensor:
    return scales.where(scales > 0, 1)

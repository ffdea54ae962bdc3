"""Quantisers that are defined by a table of levels: DoReFa, QNN, binary and affine quantisation, natural dithering,
NUQSGD."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic import kernels
from laconic.claims import Payload, Unbiased
from laconic.compression.codes import bits, elias
from laconic.compression.level_tables import Tabled
from laconic.compression.payload import pack, unpack
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "dorefa",
    paper="Zhou et al. (DoReFa-Net), arXiv 1606.06160",
    claims=[Unbiased(), Payload(lambda spec, c: -(-c.bits * spec.numel // 8) + 4)],
    formula="Q(x)_i = s·(2k/(2^b - 1) - 1), k at random a neighbour of (x_i/s + 1)(2^b - 1)/2, s = max|x|",
)
@dataclass(frozen=True)
class DoReFa(Tabled):
    """Rounding at random to 2^k equally spaced points from minus to plus the largest magnitude.

    Reading chosen: the paper's quantiser of activation gradients, on weight gradients with one scale a tensor. Its
    noise of a full step before rounding to the nearest point is the same as rounding up with the probability of the
    remainder.
    """

    bits: int = knob(6, low=1, high=16, gentler="more", doc="k: 2^k points, none of them zero")

    @property
    def table(self) -> Tensor:
        steps = 2**self.bits - 1
        return torch.arange(-steps, steps + 1, 2).div(steps)


@technique(
    "qnn",
    paper="Hubara et al., JMLR 2017",
    claims=[Unbiased()],
    formula="Q(x)_i = s with chance (1 + x_i/s)/2, else -s; s = max|x|",
)
@dataclass(frozen=True)
class QNN(Tabled):
    """One bit: plus or minus the scale, with the probability of a hard sigmoid; a value g loses s² - g² in the mean.

    Reading chosen: the paper's stochastic binarisation of weights and activations, on gradients. With range=max the
    scale s is the largest magnitude; with range=one it is 1 and is not sent, and values beyond it always give their
    sign, infinite ones too (NaN is sent as -1).
    """

    range: str = knob("max", choices=("max", "one"), doc="the scale: the largest magnitude, or 1")

    @property
    def table(self) -> Tensor:
        return torch.tensor([-1.0, 1.0])

    def count(self, numel: int) -> int:
        return 0 if self.range == "one" else super().count(numel)

    def scales(self, flat: Tensor) -> Tensor:
        return flat.new_zeros(0) if self.range == "one" else super().scales(flat)

    def coded(self, flat: Tensor, scales: Tensor, draws: Tensor) -> Tensor:
        return super().coded(flat, self._known(scales, flat.numel()), draws)

    def decoded(self, codes: Tensor, scales: Tensor) -> Tensor:
        return super().decoded(codes, self._known(scales, codes.numel()))

    def _known(self, scales: Tensor, numel: int) -> Tensor:
        return scales if self.range == "max" else scales.new_ones(super().count(numel))

    def variance(self, spec: TensorSpec) -> float | None:
        return super().variance(spec) if self.range == "max" else None


@technique(
    "suresh_binary",
    paper="Suresh, Yu, Kumar, McMahan, ICML 2017",
    claims=[Unbiased(), Payload(lambda spec, c: -(-spec.numel // 8) + 8)],
    holds="the exact error Σ (max - x)(x - min): (d - 2)/2n for two opposite coordinates and n clients",
    formula="Q(x)_i = hi with chance (x_i - lo)/(hi - lo), else lo; lo = min x, hi = max x",
)
@dataclass(frozen=True)
class Binary(Tabled):
    """One bit: the smallest value or the largest, at random so that the mean is right.

    A value x loses (hi - x)(x - lo) in the mean. Each worker draws for itself, so that the error of the mean falls as
    1/N.
    """

    @property
    def table(self) -> Tensor:
        return torch.tensor([0.0, 1.0])

    @property
    def scale(self) -> str:
        return "range"


@technique(
    "banner_8bit",
    paper="Banner, Hubara, Hoffer, Soudry, NeurIPS 2018",
    claims=[Unbiased(), Payload(lambda spec, c: spec.numel + 8)],
    formula="Q(x)_i = lo + (hi - lo)·k/255, k at random a neighbour of 255(x_i - lo)/(hi - lo)",
)
@dataclass(frozen=True)
class Affine(Tabled):
    """Rounding at random to 256 equally spaced points from the smallest value to the largest.

    Reading chosen: of the paper's 8-bit training, the code of layer gradients, as a message; its batch normalisation by
    the range is `range_deviation`, and its second copy of 16 bits is `cast_fp16`.
    """

    @property
    def table(self) -> Tensor:
        return torch.arange(256) / 255

    @property
    def scale(self) -> str:
        return "range"


def range_deviation(x: Tensor) -> Tensor:
    """Return the range of n values divided by √(2·ln n), which range batch-norm uses as the standard deviation."""
    return (x.max() - x.min()) / math.sqrt(2 * math.log(x.numel()))


@dataclass(frozen=True)
class Halving(Tabled):
    """A table of zero and successive halves of the norm on both sides of it."""

    @property
    @abstractmethod
    def halvings(self) -> int:
        """The number of halvings down to the smallest level above zero."""

    @property
    def table(self) -> Tensor:
        positive = 2.0 ** torch.arange(-self.halvings, 1, dtype=torch.float32)
        return torch.cat([-positive.flip(0), torch.zeros(1), positive])


@technique(
    "natural_dithering",
    paper="Horváth et al., MSML 2022",
    claims=[Unbiased()],
    holds="variance 1/8 + √n·2^(1-s)·min(1, √n·2^(1-s)): 1/8 at many levels, 99 of 100.1 at one and n = 10⁴",
    formula="Q(x)_i = |x|·sign(x_i)·l, l at random a neighbour of |x_i|/|x| in 0, 2^(1-s), …, 1/2, 1",
)
@dataclass(frozen=True)
class NaturalDithering(Halving):
    """Dithering with levels that halve, 1, 1/2, … down to 2^(1-s), and zero.

    s levels do what 2^(s-1) equally spaced ones do. Between powers of two a value loses at most an eighth of its
    square, and below the last the width of that gap.
    """

    levels: int = knob(7, low=1, high=63, gentler="more", doc="s, the levels above zero: 7 makes 4 bits with the sign")
    norm: str = knob("l2", choices=("l2", "max"), doc="the norm that levels are shares of")

    @property
    def halvings(self) -> int:
        return self.levels - 1

    @property
    def scale(self) -> str:
        return self.norm


@technique(
    "nuqsgd",
    paper="Ramezani-Kebrya et al., JMLR 2021",
    claims=[Unbiased()],
    formula="Q(x)_i = |x|₂·sign(x_i)·l, l at random a neighbour of |x_i|/|x|₂ in 0, 2^-s, …, 1/2, 1",
)
@dataclass(frozen=True)
class NUQSGD(Halving):
    """QSGD with levels that halve: zero and 2^-s, …, 1/2, 1 of the bucket's l2 norm.

    Reading chosen: the bound that the level spacing gives, and buckets of 8192. With `coding=elias` levels are numbered
    from zero and small numbers take few bits, as in `qsgd`.
    """

    bucket: int = knob(8192, low=0, doc="elements that share a norm; 0: the whole tensor")
    s: int = knob(
        6, low=0, high=60, gentler="more", doc="halvings: s + 2 levels with zero, 6 makes 4 bits with the sign"
    )
    coding: str = knob(
        "fixed", choices=("fixed", "elias"), doc="levels of a fixed width, or shorter codes for smaller levels"
    )

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return self.coding == "elias"

    @property
    def halvings(self) -> int:
        return self.s

    @property
    def scale(self) -> str:
        return "l2"

    def encode(self, x: Tensor, meet: Meet) -> Tensor:
        if not self.ragged:
            return super().encode(x, meet)
        flat = x.reshape(-1)
        scales = self.scales(flat)
        codes = self.coded(flat, scales, kernels.uniform(meet.key(), 0, flat.numel(), x.device))
        return pack(scales, elias.encode_signed(codes - self.s - 1))

    def decode(self, payload: Tensor, shape: torch.Size, meet: Meet) -> Tensor:
        if not self.ragged:
            return super().decode(payload, shape, meet)
        scales, packed = unpack(payload, (torch.float32, self.count(shape.numel())), (torch.uint8, -1))
        return self.decoded(elias.decode_signed(packed, shape.numel()) + self.s + 1, scales).view(shape)

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        if not self.ragged:
            return super().payload_bytes(spec, size)
        return bits.length(spec.numel, elias.length(self.s + 2) + 1) + 4 * self.count(spec.numel)

"""A limit for each layer from its root mean square: what exceeds it is sent, up to a share of the layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codes.places import PLACES
from laconic.compression.selector import Selector
from laconic.compression.thresholds import passing
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "important",
    paper="Zhang, Wang, IEEE TPDS 33(11), 2022 (MIPD)",
    formula="C(x)_i = x_i where |x_i| ≥ z·rms(layer), else 0; at most half of them",
)
@dataclass(frozen=True)
class Important(Selector):
    """Magnitudes at or above a multiple of the layer's root mean square, at most the largest `ratio` of them.

    The multiple is the one that this share of a normal distribution exceeds, so that layers with heavier tails send
    less. At least one value is sent; all are at ratio 1. Values that are not finite are sent first. Reading chosen: the
    layer's l2 norm is the indicator of importance, and its limit is in proportion to it.
    """

    left_out: ClassVar[float] = -0.0
    ratio: float = knob(
        0.5, above=0, high=1, gentler="more", doc="largest share of a layer that is sent; at least one value"
    )
    index: str = knob("bitmap", choices=PLACES, doc="places as a bitmap, in log2 n bits, in 32, as coded gaps")

    @property
    def varies(self) -> bool:
        return True

    @property
    def multiple(self) -> float:
        """The limit as a multiple of the root mean square."""
        return NormalDist().inv_cdf(1 - self.ratio / 2)

    def count(self, numel: int) -> int:
        return min(numel, max(1, math.floor(self.ratio * numel + 1e-9)))

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        most = self.count(x.numel())
        if most == x.numel():
            return torch.arange(most, device=x.device)
        top = x.abs().max()
        level = top * (x / top).square().mean().sqrt()  # scaled so that no square overflows
        places = passing(x, self.multiple * float(level)) if top > 0 else x.new_empty(0, dtype=torch.int64)
        return places if 0 < len(places) <= most else largest(x, most if len(places) else 1)

    def contraction(self, spec: TensorSpec) -> float | None:
        """Return δ: the values left out are below the limit, or are the smaller part of a layer."""
        if not spec.numel:
            return None
        share = min(self.count(spec.numel) / spec.numel, 1 - self.multiple**2)
        return max(share, 1 / spec.numel)

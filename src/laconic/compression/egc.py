"""EGC: layers whose gradients have a higher entropy send a larger share of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.compression.codes import runs
from laconic.compression.dgc import DGC
from laconic.compression.selector import share_of
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Meet


@technique(
    "egc",
    paper="Xiao et al., 2021",
    formula="as dgc, with k/n = floor + (ratio - floor)·H/log2(bins), H the entropy of the histogram of v",
)
@dataclass(frozen=True)
class EGC(DGC):
    """DGC's memory with momentum, where a layer's share grows with the entropy of its values' histogram.

    Reading chosen: the share grows linearly from `floor` at entropy 0 to `ratio` at the entropy of a flat histogram,
    the values are the accumulated ones that wait to be sent, and the learning rate is left alone. Each worker decides
    by its own values, so that messages differ in length.
    """

    ragged: ClassVar[bool] = True
    ratio: float = knob(0.01, above=0, high=1, gentler="more", doc="share of the coordinates at the highest entropy")
    floor: float = knob(0.001, above=0, high=1, doc="share of the coordinates at the lowest entropy")
    bins: int = knob(64, low=2, doc="bins of the histogram")

    def kept(self, flat: Tensor) -> float:
        """Return the share of these values that is sent."""
        low, high = min(self.floor, self.ratio), self.ratio
        return low + (high - low) * entropy(flat, self.bins) / math.log2(self.bins)

    def choose(self, flat: Tensor, meet: Meet) -> Tensor:
        return largest(flat, share_of(self.kept(flat), flat.numel()))

    def payload_bytes(self, spec: TensorSpec, size: int) -> int:
        """Return the bytes at the highest entropy, if no gap is long."""
        return runs.EACH * share_of(self.ratio, spec.numel)


def entropy(values: Tensor, bins: int) -> float:
    """Return the entropy in bits of a histogram from the smallest value to the largest; 0 if all values are equal or
    their range is not finite."""
    flat = values.float()
    low, high = flat.aminmax()
    if not (high - low).isfinite() or high == low:
        return 0.0
    counts = torch.histc(flat, bins, float(low), float(high))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log2()).sum())

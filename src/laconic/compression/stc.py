"""Sparse ternary compression: the largest magnitudes, all as their mean, with signs and coded gaps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.selector import PlaceSelector, share_of
from laconic.compression.signs import ScaledSign
from laconic.compression.topk import largest
from laconic.registry import knob, technique
from laconic.worker import Meet


@technique(
    "stc",
    aliases=["sparse_ternary"],
    paper="Sattler et al., IEEE TNNLS 2020",
    evidence="fixture",
    reproduces="stc.npz, recorded from the authors' program: messages and memory, step by step, as `stc+ef`",
    holds="8.4 bits for each value that is sent at p = 0.01, 10.4 at 1/400: Golomb's code of the gaps, and a sign",
    formula="C(x)_i = μ·sign(x_i) where |x_i| is among the k largest, else 0; μ = their mean magnitude",
)
@dataclass(frozen=True)
class STC(PlaceSelector):
    """The k largest magnitudes, all sent as their mean with a sign; places as gaps in Golomb's code.

    Without memory it loses the rest: the paper's method is `fedavg / stc(0.0025)+ef / server(down="stc(0.0025)")`, with
    a memory at every client and one at the server. A client that missed rounds is sent what it missed.
    """

    ratio: float = knob(0.0025, above=0, high=1, gentler="more", doc="share of the coordinates that are sent")

    @property
    def place_code(self) -> str:
        return "golomb"

    @property
    def own_values(self) -> Codec:
        return ScaledSign()

    def count(self, numel: int) -> int:
        return share_of(self.ratio, numel)

    def choose(self, x: Tensor, meet: Meet) -> Tensor:
        return largest(x, self.count(x.numel()))

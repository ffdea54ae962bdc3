"""Warm-up of the learning rate, and the named sentence that joins the aids of sparse training."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.registry import knob, named_sentence, technique
from laconic.sync.base import State
from laconic.sync.controller import Adjustment, Observed
from laconic.sync.large_batch import Steered


@technique("warm_up", paper="Goyal et al., arXiv 1706.02677, 2017; Lin et al. (DGC), ICLR 2018")
@dataclass(frozen=True)
class WarmUp(Steered):
    """`bsp` with a learning rate that grows in equal steps from a share of the script's own to all of it.

    While gradients change fast, what a compressor leaves for later is out of date when it is sent, and smaller steps
    help. The factor multiplies the rate that a scheduler sets.
    """

    steps: int = knob(400, low=1, doc="steps until the script's own rate is reached")
    start: float = knob(0.1, above=0, high=1, doc="share of the script's rate in the first step")

    def decide(self, observed: Observed, state: State) -> Adjustment:
        return Adjustment(rate=self.start + (1 - self.start) * min(1.0, observed.step / self.steps))


named_sentence(
    "auxiliary_tricks",
    "warm_up(400) / flat+dgc(0.001, clip=1.0, warmup=400) / allreduce / sequential",
    axis="compression",
    paper="Lin, Han, Mao, Wang, Dally (DGC), ICLR 2018; Tang et al., arXiv 2003.06307",
    doc="""The four aids of sparse training together: error accumulation, momentum correction with masking, local
    clipping, and a warm-up of the learning rate and of the density.

    Each is available alone too: `ef`, `dgc` with its `masking` and `clip`, `ramp` and `warm_up`. Reading chosen: the
    four are the usual ones, and it is a worker's whole gradient that is clipped. At density 1 masking resets all
    momentum: write masking=false to have momentum SGD there.
    """,
    formula="g ← g·min(1, θ/(√N|g|)), u ← m·u + g, v ← v + u; send the k_t largest of |v|, there v ← 0 and u ← 0",
)

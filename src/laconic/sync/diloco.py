"""DiLoCo: many local steps of any optimizer, then one outer Nesterov step on their mean displacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.contexts import BucketContext
from laconic.sync.outer_optimizer import OFFLOAD, Outer, nesterov, outer_step
from laconic.values.cadence import Cadence


@technique(
    "diloco",
    paper="Douillard et al., arXiv 2311.08105, 2023",
    holds="one exchange in 500 steps: 500 times fewer bytes than synchronous training; no loss of the paper is held",
    worth_trying=[f"diloco({period})" for period in (8, 16, 32, 64)],
)
@dataclass(frozen=True)
class DiLoCo(Outer):
    """Local steps, then one Nesterov step on the mean displacement; the inner optimizer's state stays on its worker.

    The inner optimizer is the user's (AdamW in the paper, Muon works as well), and so are its rate and its schedule,
    which runs over all steps. `lr=1, momentum=0` is averaging of parameters. The paper starts from a trained model, as
    in `bsp until step 500, then diloco(period=50)`.
    """

    lr: float = knob(0.7, above=0, doc="learning rate of the outer step")
    momentum: float = knob(0.9, low=0, below=1, doc="Nesterov momentum of the outer step")
    offload: bool = knob(False, doc=OFFLOAD)
    ends_at_point: ClassVar[bool] = True

    @property
    def keeps_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def cadence(self) -> Cadence:
        return Cadence(self.period, overlaps=False)

    @property
    def guarantee(self) -> str:
        return outer_step(self.period)

    def step(self, context: BucketContext, point: Tensor, momentum: Tensor | None, gradient: Tensor) -> None:
        nesterov(point, momentum, gradient, self.lr, self.momentum)

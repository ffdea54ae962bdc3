"""SlowMo: a slow momentum around local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.contexts import BucketContext
from laconic.sync.momentum import POLICIES, treat_momentum
from laconic.sync.outer_optimizer import OFFLOAD, Outer, outer_step
from laconic.values.cadence import Cadence
from laconic.worker import Communication


@technique("slowmo", aliases=["slow_momentum", "bmuf"], paper="Wang, Tantia, Ballas, Rabbat, ICLR 2020")
@dataclass(frozen=True)
class SlowMo(Outer):
    """Slow momentum after every `period` local steps: u = beta·u + (x − mean)/rate and x = x − alpha·rate·u.

    x is the common point, mean the average of the models after the round, and rate the learning rate, by which u is
    divided so that it does not follow the rate's decay. `alpha=1, beta=0` is local SGD; with one worker it is
    Lookahead. The base optimizer's own state is reset at the end of a round (the paper's choice for SGD with momentum),
    kept (for Adam) or averaged. Here the base algorithm is local steps; the paper also uses gossip.
    """

    period: int = knob(12, low=1, gentler="less", doc="local steps in a round")
    alpha: float = knob(1.0, above=0, doc="slow learning rate")
    beta: float = knob(0.6, low=0, below=1, doc="slow momentum")
    buffers: str = knob("keep", choices=POLICIES, doc="what happens to the base optimizer's own state")
    offload: bool = knob(False, doc=OFFLOAD)
    ends_at_point: ClassVar[bool] = True

    @property
    def cadence(self) -> Cadence | None:
        return None if self.buffers == "average" else Cadence(self.period, overlaps=False)

    @property
    def guarantee(self) -> str:
        return outer_step(self.period)

    @property
    def reads_optimizer_state(self) -> bool:
        return self.buffers != "keep"

    def step(self, context: BucketContext, point: Tensor, momentum: Tensor | None, gradient: Tensor) -> None:
        if not context.rate:  # the schedule set zero, which cannot divide: the step is the mean displacement
            point.sub_(gradient)
            return
        assert momentum is not None
        momentum.mul_(self.beta).add_(gradient, alpha=1 / context.rate)
        point.sub_(momentum, alpha=self.alpha * context.rate)

    def after_round(self, context: BucketContext) -> Communication[Any]:
        yield from treat_momentum(context, self.buffers)

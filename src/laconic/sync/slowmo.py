"""SlowMo: a slow momentum around local steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import SyncContext, Talk
from laconic.sync.momentum import POLICIES, treat_momentum
from laconic.sync.outer import Outer


@technique("slowmo", aliases=["slow_momentum", "bmuf"], paper="Wang, Tantia, Ballas, Rabbat, ICLR 2020")
@dataclass(frozen=True)
class SlowMo(Outer):
    """u = beta·u + (x − mean)/rate and x = x − alpha·rate·u after every `period` local steps.

    Dividing by the learning rate keeps u free of its decay. `alpha=1, beta=0` is local SGD, one worker is Lookahead.
    The base optimizer's own memory is reset at the end of a round (the paper's choice for SGD with momentum), kept (for
    Adam) or averaged. The base here is local steps; the paper also puts gossip there.
    """

    period: int = knob(12, low=1, doc="local steps in a round")
    alpha: float = knob(1.0, above=0, doc="slow rate")
    beta: float = knob(0.6, low=0, below=1, doc="slow momentum")
    buffers: str = knob("keep", choices=POLICIES, doc="what becomes of the optimizer's own memory")

    def step(self, context: SyncContext, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        if not context.rate:  # a schedule's zero: nothing to divide by, and the base's own mean is the step
            point.sub_(gradient)
            return
        momentum.mul_(self.beta).add_(gradient, alpha=1 / context.rate)
        point.sub_(momentum, alpha=self.alpha * context.rate)

    def after_round(self, context: SyncContext) -> Talk:
        yield from treat_momentum(context, self.buffers)

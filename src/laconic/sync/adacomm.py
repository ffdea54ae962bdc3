"""AdaComm: average rarely at first, when any progress is good, and more often as the loss falls."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import SteeringContext
from laconic.sync.controller import Adjustment, Controlled, Observed
from laconic.sync.local import Averaging, local_steps
from laconic.sync.momentum import treat_momentum
from laconic.sync.tensor_lists import keep, kept
from laconic.worker import Communication


@technique("adacomm", paper="Wang and Joshi, MLSys 2019")
@dataclass(frozen=True)
class AdaComm(Controlled, Averaging[SteeringContext]):
    """Local SGD whose period follows the training loss F: ceil(sqrt(eta_0/eta · F/F_0) · tau_0), once per interval.

    eta is the learning rate, and the index 0 marks first values. A period that the formula would not lower is halved,
    and none is below 1. F is what the script gives to `laconic.log(loss=…)`, averaged over workers; an interval is
    measured by the slowest worker's clock and ends at an averaging. `tau_0 = 1` is `bsp`. With `block_momentum` the
    averaged change of a round has a momentum of its own and the workers' momentum is reset, as long as the period is
    above 1; at 1 it is kept, since resetting it in every step would switch it off. The paper also postpones the decay
    of the learning rate until then, which is left to the script.
    """

    period: int = knob(16, low=1, gentler="less", doc="tau_0: local steps between averagings in the first interval")
    interval_seconds: float = knob(60.0, above=0, doc="how long a period holds")
    shrink: float = knob(0.5, above=0, below=1, doc="gamma: factor on a period that the formula would not lower")
    block_momentum: float = knob(0.0, low=0, below=1, doc="momentum of the averaged change of a round")
    watches: ClassVar[tuple[str, ...]] = ("loss", "seconds")

    @property
    def guarantee(self) -> str:
        return local_steps(self.period)

    @property
    def reads_optimizer_state(self) -> bool:
        return self.block_momentum > 0

    def init(self, context: SteeringContext) -> State:
        now = {"period": torch.tensor(self.period), "decided": torch.tensor(0.0, dtype=torch.float64)}
        block = [torch.zeros_like(p) for p in context.parameters] if self.block_momentum else []
        return super().init(context) | self.begin(context) | now | keep("block", block)

    def averages_gradients(self, step: int) -> bool:
        return self.period == 1

    def decide(self, observed: Observed, state: State) -> Adjustment:
        period = int(state.get("period", self.period))
        if observed.seconds - float(state.get("decided", 0.0)) < self.interval_seconds:
            return Adjustment(period)
        state["decided"] = torch.tensor(observed.seconds, dtype=torch.float64)
        loss, first_loss = observed.losses(self.name)
        fallen = max(0.0, loss / first_loss) if first_loss > 0 else 1.0
        slower = observed.first_rate / observed.rate if observed.rate > 0 else 1.0
        wanted = math.ceil(math.sqrt(slower * fallen) * self.period)
        return Adjustment(max(1, wanted if wanted < period else int(self.shrink * period)))

    def after_step(self, context: SteeringContext, state: State) -> Communication[State]:
        self.notice(context, state)
        now = context.step + 1
        if self.period > 1 and now - int(state["met"]) >= int(state["period"]):
            yield from self.average_models(context, state)
            decision = yield from self.consult(context, state)
            state |= {"met": torch.tensor(now), "period": torch.tensor(decision.period)}
        return state

    def _has_block_momentum(self, state: State) -> bool:
        return self.block_momentum > 0 and int(state["period"]) > 1

    def move(self, state: State, points: list[Tensor], means: list[Tensor]) -> None:
        if self._has_block_momentum(state):
            block = kept(state, "block", range(len(points)))
            means = [u.mul_(self.block_momentum).add_(mean) for u, mean in zip(block, means, strict=True)]
        super().move(state, points, means)

    def after_averaging(self, context: SteeringContext, state: State) -> Communication[None]:
        yield from treat_momentum(context, "reset" if self._has_block_momentum(state) else "keep")

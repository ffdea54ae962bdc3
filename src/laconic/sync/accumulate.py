"""Gradient accumulation: the baseline that local steps must beat at the same number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laconic.registry import knob, technique
from laconic.sync.base import State, Sync, SyncContext
from laconic.values.cadence import Cadence
from laconic.worker import Communication


@technique(
    "grad_accumulation",
    aliases=["accumulate", "gradient_accumulation"],
    paper="Ott et al., WMT 2018; Lin, Stich, Patel, Jaggi, ICLR 2020",
    worth_trying=[f"accumulate({n}) / {chain}" for n in (2, 4, 8, 16, 32, 64) for chain in ("none", "bf16", "fp16")],
)
@dataclass(frozen=True)
class GradAccumulation(Sync):
    """Step on every `steps`-th call of `step()`, on the mean gradient of all workers' micro-batches since the last.

    It sends as many messages and uses as many samples as local SGD with that period, without drift: all gradients of a
    sum are taken at the same parameters. They add up in `p.grad`, which the optimizer's `zero_grad()` keeps in between
    (`model.zero_grad()` would drop it); the exchange is part of the last micro-batch's backward, after which `p.grad`
    is the mean over micro-batches and workers. A scheduler stepped in every iteration advances in every micro-step.
    """

    steps: int = knob(4, low=1, gentler="less", doc="micro-batches per step")
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True

    @property
    def cadence(self) -> Cadence:
        return Cadence(self.steps)

    @property
    def guarantee(self) -> str | None:
        return f"synchronous SGD with batches {self.steps} times as large" if self.steps > 1 else None

    @property
    def micro_batches(self) -> int:
        return self.steps

    def averages_gradients(self, step: int) -> bool:
        return (step + 1) % self.steps == 0

    def stepping(self, context: SyncContext, state: State) -> Communication[State]:
        if self.averages_gradients(context.step):
            context.apply()
        return state
        yield

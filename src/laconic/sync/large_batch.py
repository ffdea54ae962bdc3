"""Fewer, larger synchronous steps: the learning rate that a large batch needs, batches that grow, and the optimizers
that keep very large ones stable."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from laconic.optim import LAMB, LARS
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import SteeringContext
from laconic.sync.controller import Adjustment, Controlled, Observed
from laconic.worker import Communication


class Steered(Controlled):
    """The base of rules that are `bsp` with a batch and a learning rate that depend on the step."""

    steers: ClassVar[bool] = True

    @property
    def guarantee(self) -> str:
        return "synchronous SGD with a batch or learning rate of its own"

    def init(self, context: SteeringContext) -> State:
        return self.begin(context)

    def averages_gradients(self, step: int) -> bool:
        return True

    def after_step(self, context: SteeringContext, state: State) -> Communication[State]:
        yield from self.consult(context, state)
        return state

    @abstractmethod
    def decide(self, observed: Observed, state: State) -> Adjustment: ...


@technique(
    "large_batch_sgd",
    aliases=["large_batch"],
    paper="Goyal et al., arXiv 1706.02677, 2017",
    holds="0.1·B/256 = 3.2 at a batch of 8192, from 0.1 in equal steps over five epochs (780 steps)",
)
@dataclass(frozen=True)
class LargeBatchSGD(Steered):
    """`bsp` with the linear scaling rule: the learning rate grows with the batch, gradually over the first steps.

    Give the script the learning rate that is right for a batch of `base`: it is multiplied by 1 at first and by
    batch/base after `warmup` steps. The script draws `laconic.batch_size(…)` samples per worker, which is `batch`
    divided by the number of workers. A scheduler's decay goes on as before. Goyal's momentum correction is for
    implementations that keep the learning rate inside the momentum; torch.optim.SGD keeps it outside, where a changing
    rate needs none. The survey names no single system: Goyal et al. is the recipe taken.
    """

    batch: int = knob(8192, low=1, doc="samples per step, over all workers")
    base: int = knob(256, low=1, doc="the batch for which the script's learning rate is right")
    warmup: int = knob(780, low=0, doc="steps from the script's rate to the scaled one")

    def decide(self, observed: Observed, state: State) -> Adjustment:
        progress = min(1.0, observed.step / self.warmup) if self.warmup else 1.0
        share = max(1, round(self.batch / observed.workers))
        return Adjustment(batch=share, rate=1 + progress * (self.batch / self.base - 1))


@technique("cr_psgd", aliases=["growing_batch"], paper="Yu and Jin, ICML 2019")
@dataclass(frozen=True)
class CRPSGD(Steered):
    """`bsp` with a fixed rate and a batch that grows geometrically: B = floor(growth · B) after every step.

    The number of steps is then logarithmic in the number of samples. The script draws `laconic.batch_size(…)` samples
    per worker; `theory_yu_jin_2019` says how large the growth may be.
    """

    batch: int = knob(32, low=1, doc="samples per worker in the first step")
    growth: float = knob(1.1, above=1, doc="factor on the batch from step to step")
    most: int | None = knob(None, low=1, doc="largest batch per worker, such as fits in memory; none: no limit")

    def decide(self, observed: Observed, state: State) -> Adjustment:
        batch = int(self.growth * int(state["batch"])) if "batch" in state else self.batch
        if self.most is not None:
            batch = min(batch, self.most)
        state["batch"] = torch.tensor(batch)
        return Adjustment(batch=batch)


@technique(
    "lars",
    axis="sync",
    paper="You, Gitman, Ginsburg, arXiv 1708.03888, 2017",
    why_no_word="It is an optimizer, which is constructed and handed to `distribute`, where any sentence takes it.",
)
def lars(parameters: Any, **settings: Any) -> LARS:
    """SGD with momentum and a rate for each layer: the optimizer `laconic.optim.LARS`, which any sentence distributes.

    Use it where the script makes its optimizer, not in the sentence: laconic.distribute(model,
    laconic.optim.LARS(model.parameters(), lr=…), "bsp").
    """
    return LARS(parameters, **settings)


@technique(
    "lamb",
    axis="sync",
    paper="You et al., ICLR 2020",
    why_no_word="It is an optimizer, which is constructed and handed to `distribute`, where any sentence takes it.",
)
def lamb(parameters: Any, **settings: Any) -> LAMB:
    """Adam with a rate for each layer: the optimizer `laconic.optim.LAMB`, which any sentence distributes.

    Use it where the script makes its optimizer, not in the sentence: laconic.distribute(model,
    laconic.optim.LAMB(model.parameters(), lr=…), "bsp"). The survey names LARS alone; large batches of Adam need this.
    """
    return LAMB(parameters, **settings)

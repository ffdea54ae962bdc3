"""Overlap-Local-SGD: local SGD whose averaging overlaps with the next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import OverlapContext
from laconic.sync.outer_optimizer import Outer
from laconic.sync.tensor_lists import kept
from laconic.worker import Communication

_MEAN = "mean"


@technique("overlap_local_sgd", paper="Wang, Liang, Joshi, ICASSP 2020, arXiv 2002.09539")
@dataclass(frozen=True)
class OverlapLocalSGD(Outer[OverlapContext]):
    """Pull every worker towards an anchor that is one round old, and average the models during the next round.

    At a round's end, wait for the mean that was started a round ago, move the anchor z there (with momentum: v = beta·v
    + mean − z, z = z + v), pull the model x back to x − alpha·(x − z), and start the next mean. The first pull is
    towards the initial model, as in the paper's matrix form. With `alpha=0` models never agree; with `alpha=1` all
    restart from z.
    """

    period: int = knob(12, low=1, gentler="less", doc="local steps in a round")
    alpha: float = knob(0.6, low=0, high=1, doc="how far a worker is pulled towards the anchor")
    beta: float = knob(0.7, low=0, below=1, doc="the anchor's momentum")

    def step(self, context: OverlapContext, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        momentum.mul_(self.beta).sub_(gradient)
        point.add_(momentum)

    @torch.no_grad()
    def after_step(self, context: OverlapContext, state: State) -> Communication[State]:
        if self.steps(context, state) % self.period == 0:
            everything = range(len(context.parameters))
            yield from self._receive_mean(context, state)
            for parameter, anchor in zip(context.parameters, kept(state, "point", everything), strict=True):
                parameter.lerp_(anchor, self.alpha)
            context.start(_MEAN, self.displacement(context, state, everything))
        return state

    def _receive_mean(self, context: OverlapContext, state: State) -> Communication[Any]:
        """Wait for the mean that was started a round ago, and move the anchor there."""
        if context.is_in_flight(_MEAN):
            moved = yield from context.wait_for(_MEAN)
            self.move(context, state, range(len(context.parameters)), moved)

    def leave(self, context: OverlapContext, state: State) -> Communication[Any]:
        yield from self._receive_mean(context, state)
        yield from super().leave(context, state)

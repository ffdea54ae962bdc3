"""Rounds of local steps around a point that all workers share, and what the rules that move it have in common.

Workers leave the point together, step on their own, and say how far they have come; the mean of that is the gradient of
an outer optimizer, whose step moves the point. Displacements travel rather than parameters, so that a compressor has
something small to say.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.registry import knob
from laconic.sync.base import State, Sync, SyncContext, Talk, average_buffers
from laconic.sync.tensors import keep, kept


@dataclass(frozen=True)
class Outer(Sync):
    """It remembers the shared `point` and the outer optimizer's `momentum`: twice the model, saved in checkpoints."""

    period: int = knob(500, low=1, doc="local steps in a round")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True

    def init(self, context: SyncContext) -> State:
        point = [p.detach().clone() for p in context.parameters]
        memory = keep("point", point) | keep("momentum", [torch.zeros_like(x) for x in point])
        return memory | {"began": torch.tensor(context.step)}

    def steps(self, context: SyncContext, state: State) -> int:
        """Made under this rule, the one just made included: rounds are counted from where it began to govern."""
        return context.step + 1 - int(state["began"])

    def displacement(self, context: SyncContext, state: State, which: Sequence[int]) -> Talk:
        """How far workers have come from the point since they left it, in the mean: the outer gradient."""
        points = kept(state, "point", which)
        moved = [x - context.parameters[i].detach() for i, x in zip(which, points, strict=True)]
        return context.average(moved, only=which)

    @torch.no_grad()
    def move(self, context: SyncContext, state: State, which: Sequence[int], moved: Sequence[Tensor]) -> None:
        """The outer optimizer's step, the same on every worker."""
        points, momenta = kept(state, "point", which), kept(state, "momentum", which)
        for point, momentum, gradient in zip(points, momenta, moved, strict=True):
            self.step(context, point, momentum, gradient)

    @abstractmethod
    def step(self, context: SyncContext, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        """Of one parameter, in place."""

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        if self.steps(context, state) % self.period == 0:
            everything = range(len(context.parameters))
            moved = yield from self.displacement(context, state, everything)
            self.move(context, state, everything, moved)
            for parameter, point in zip(context.parameters, kept(state, "point", everything), strict=True):
                parameter.copy_(point)
            yield from average_buffers(context)
            yield from self.after_round(context)
        return state

    def after_round(self, context: SyncContext) -> Talk:
        """What becomes of the inner optimizer's memory."""
        yield from ()


def nesterov(point: Tensor, momentum: Tensor, gradient: Tensor, rate: float, mu: float) -> None:
    """One step as torch.optim.SGD(nesterov=True) makes it."""
    momentum.mul_(mu).add_(gradient)
    point.sub_(rate * (gradient + mu * momentum))

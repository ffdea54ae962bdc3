"""The base of rules with an outer optimizer: rounds of local steps that start from a point common to all workers.

Workers start a round from the common point, step on their own, and average their displacements from it; the mean is the
gradient of an outer optimizer, whose step moves the point. Displacements are sent rather than parameters, so that a
compressor has smaller values to encode.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.registry import knob
from laconic.sync.base import Context, State, Sync, average_buffers
from laconic.sync.tensor_lists import keep, kept
from laconic.worker import Communication


@dataclass(frozen=True)
class Outer(Sync[Context]):
    """A rule with an outer optimizer, whose state is the common `point` and a `momentum`: twice the model's size."""

    period: int = knob(500, low=1, gentler="less", doc="local steps in a round")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    copies: ClassVar[int] = 2

    def init(self, context: Context) -> State:
        point = [p.detach().clone() for p in context.parameters]
        memory = keep("point", point) | keep("momentum", [torch.zeros_like(x) for x in point])
        return memory | {"began": torch.tensor(context.step)}

    def steps(self, context: Context, state: State) -> int:
        """Return the number of steps under this rule, this one included; rounds are counted from its beginning."""
        return context.step + 1 - int(state["began"])

    def displacement(self, context: Context, state: State, which: Sequence[int]) -> Communication[Any]:
        """Return the outer gradient: the mean over workers of the common point minus their parameters."""
        points = kept(state, "point", which)
        moved = [x - context.parameters[i].detach() for i, x in zip(which, points, strict=True)]
        return context.average(moved, only=which)

    @torch.no_grad()
    def move(self, context: Context, state: State, which: Sequence[int], moved: Sequence[Tensor]) -> None:
        """Make the outer optimizer's step on the common point, the same on every worker."""
        points, momenta = kept(state, "point", which), kept(state, "momentum", which)
        for point, momentum, gradient in zip(points, momenta, moved, strict=True):
            self.step(context, point, momentum, gradient)

    @abstractmethod
    def step(self, context: Context, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        """Make the outer step of one parameter, in place on its point and momentum."""

    @torch.no_grad()
    def after_step(self, context: Context, state: State) -> Communication[State]:
        if self.steps(context, state) % self.period == 0:
            everything = range(len(context.parameters))
            moved = yield from self.displacement(context, state, everything)
            self.move(context, state, everything, moved)
            for parameter, point in zip(context.parameters, kept(state, "point", everything), strict=True):
                parameter.copy_(point)
            yield from average_buffers(context)
            yield from self.after_round(context)
        return state

    def after_round(self, context: Context) -> Communication[Any]:
        """Treat the inner optimizer's state at the end of a round; by default it is kept."""
        yield from ()


def outer_step(period: int) -> str:
    """Return what theory guarantees of an outer step after so many local ones."""
    return f"{period} local steps, then an outer one: SGD's rate with SGD inside (Reddi et al., 2021)"


def nesterov(point: Tensor, momentum: Tensor, gradient: Tensor, rate: float, mu: float) -> None:
    """Make one step in place, as torch.optim.SGD(nesterov=True) makes it."""
    momentum.mul_(mu).add_(gradient)
    point.sub_(rate * (gradient + mu * momentum))

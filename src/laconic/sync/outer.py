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
from laconic.sync.base import Section, State, Sync, Talk, average_buffers
from laconic.sync.tensors import keep, kept


@dataclass(frozen=True)
class Outer(Sync):
    """It remembers the shared `point` and the outer optimizer's `momentum`: twice the model, saved in checkpoints."""

    period: int = knob(500, low=1, doc="local steps in a round")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True

    def init(self, section: Section) -> State:
        point = [p.detach().clone() for p in section.parameters]
        memory = keep("point", point) | keep("momentum", [torch.zeros_like(x) for x in point])
        return memory | {"began": torch.tensor(section.step)}

    def steps(self, section: Section, state: State) -> int:
        """Made under this rule, the one just made included: rounds are counted from where it began to govern."""
        return section.step + 1 - int(state["began"])

    def displacement(self, section: Section, state: State, which: Sequence[int]) -> Talk:
        """How far workers have come from the point since they left it, in the mean: the outer gradient."""
        points = kept(state, "point", which)
        moved = [x - section.parameters[i].detach() for i, x in zip(which, points, strict=True)]
        return section.average(moved, only=which)

    @torch.no_grad()
    def move(self, section: Section, state: State, which: Sequence[int], moved: Sequence[Tensor]) -> None:
        """The outer optimizer's step, the same on every worker."""
        points, momenta = kept(state, "point", which), kept(state, "momentum", which)
        for point, momentum, gradient in zip(points, momenta, moved, strict=True):
            self.step(section, point, momentum, gradient)

    @abstractmethod
    def step(self, section: Section, point: Tensor, momentum: Tensor, gradient: Tensor) -> None:
        """Of one parameter, in place."""

    @torch.no_grad()
    def after_step(self, section: Section, state: State) -> Generator[Any, Any, State]:
        if self.steps(section, state) % self.period == 0:
            everything = range(len(section.parameters))
            moved = yield from self.displacement(section, state, everything)
            self.move(section, state, everything, moved)
            for parameter, point in zip(section.parameters, kept(state, "point", everything), strict=True):
                parameter.copy_(point)
            yield from average_buffers(section)
            yield from self.after_round(section)
        return state

    def after_round(self, section: Section) -> Talk:
        """What becomes of the inner optimizer's memory."""
        yield from ()


def nesterov(point: Tensor, momentum: Tensor, gradient: Tensor, rate: float, mu: float) -> None:
    """One step as torch.optim.SGD(nesterov=True) makes it."""
    momentum.mul_(mu).add_(gradient)
    point.sub_(rate * (gradient + mu * momentum))

"""The base of rules with an outer optimizer: rounds of local steps that start from a point common to all workers.

Workers start a round from the common point, step on their own, and average their displacements from it; the mean is the
gradient of an outer optimizer, whose step moves the point. Displacements are sent rather than parameters, so that a
compressor has smaller values to encode.

All of it goes by buckets of parameters: point, momentum and displacement are one vector each, and so is a message.
Between rounds none of them needs to be on the GPU, and with `offload` none is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.kernels.offload import Stay, flush, room
from laconic.registry import knob
from laconic.sync.base import State, Sync, average_buffers
from laconic.sync.contexts import BucketContext
from laconic.sync.outer_memory import joined, keep_vector, kept_vector, parts_of
from laconic.worker import Communication

OFFLOAD = "whether a GPU's outer state lies in the host's pinned memory between exchanges; elsewhere it does nothing"
"""The knob `offload` in a line. It is off unless told otherwise: it frees memory in all steps of a round, and makes the
last one longer by the copies over the GPU's link."""


@dataclass(frozen=True)
class Outer(Sync[BucketContext]):
    """A rule with an outer optimizer, whose state is the common `point` and a `momentum`: twice the model's size."""

    period: int = knob(500, low=1, gentler="less", doc="local steps in a round")
    late: ClassVar[bool] = True
    replicas_differ: ClassVar[bool] = True
    copies: ClassVar[int] = 2
    ends_at_point: ClassVar[bool] = False
    """Whether all workers hold the common point when a round has ended."""

    @property
    def offloads(self) -> bool:
        return bool(getattr(self, "offload", False))

    @property
    def keeps_momentum(self) -> bool:
        """Whether the outer optimizer has a momentum to keep."""
        return True

    def fragments_in(self, context: BucketContext) -> Sequence[Sequence[int]]:
        """Return the parameters that are exchanged together, once in a round: all of them, unless the rule says
        otherwise."""
        return [range(len(context.parameters))]

    @torch.no_grad()
    def init(self, context: BucketContext) -> State:
        state: State = {"began": torch.tensor(context.step)}
        for fragment in self.fragments_in(context):
            for members in context.buckets(fragment):
                like = [context.parameters[i] for i in members]
                point = joined(like, self.offloads)
                keep_vector(state, "point", members, like, point)
                if self.keeps_momentum:
                    momentum = room(point.numel(), point.dtype, like[0].device, self.offloads).zero_()
                    keep_vector(state, "momentum", members, like, momentum)
        return state

    def steps(self, context: BucketContext, state: State) -> int:
        """Return the number of steps under this rule, this one included; rounds are counted from its beginning."""
        return context.step + 1 - int(state["began"])

    @torch.no_grad()
    def after_step(self, context: BucketContext, state: State) -> Communication[State]:
        if self.steps(context, state) % self.period == 0:
            (everything,) = self.fragments_in(context)
            yield from context.pipelined(
                OuterBucket(self, context, state, members).round() for members in context.buckets(everything)
            )
            flush(context.parameters[0].device)
            yield from average_buffers(context)
            yield from self.after_round(context)
        return state

    def leave(self, context: BucketContext, state: State) -> Communication[None]:
        whole_rounds = (context.step - int(state["began"])) % self.period == 0
        if not (whole_rounds and self.ends_at_point):
            yield from super().leave(context, state)

    @abstractmethod
    def step(self, context: BucketContext, point: Tensor, momentum: Tensor | None, gradient: Tensor) -> None:
        """Make the outer step of some parameters, in place on their point and on the momentum that is kept of them."""

    def after_round(self, context: BucketContext) -> Communication[Any]:
        """Treat the inner optimizer's state at the end of a round; by default it is kept."""
        yield from ()

    def averages(self, context: BucketContext, fragment: Sequence[int], moved: Sequence[Tensor]) -> Communication[Any]:
        """Return the means over workers of these displacements, one vector for each bucket of a fragment, all of them
        in flight at once."""
        buckets = context.buckets(fragment)
        sent = [context.average_vector(x, members) for x, members in zip(moved, buckets, strict=True)]
        yield from context.pipelined(sent, len(sent))
        return list(moved)


class OuterBucket:
    """The parameters of one bucket and their outer state, which is fetched to their device from the first moment on.

    Where the outer optimizer does not step (`moves` is false), only the point is.
    """

    def __init__(
        self, rule: Outer, context: BucketContext, state: State, members: Sequence[int], moves: bool = True
    ) -> None:
        self._rule, self._context, self._members = rule, context, members
        self._has_momentum = moves and rule.keeps_momentum
        self.parameters = [context.parameters[i].detach() for i in members]
        names = ("point", "momentum") if self._has_momentum else ("point",)
        homes = [kept_vector(state, name, members, self.parameters, rule.offloads) for name in names]
        self._stay = Stay(homes, self.parameters[0].device)

    @property
    def point(self) -> Tensor:
        return self._stay[0]

    def displacement(self) -> Tensor:
        """Return this worker's outer gradient: the common point minus its parameters."""
        moved = self.point.clone()
        torch._foreach_sub_(parts_of(moved, self.parameters), self.parameters)
        return moved

    def move(self, gradient: Tensor) -> None:
        """Make the outer optimizer's step on the common point, the same on every worker."""
        self._rule.step(self._context, self.point, self._stay[1] if self._has_momentum else None, gradient)

    def pull(self, share: float) -> None:
        """Move the parameters towards the point by this share of the way; 1 is all of it."""
        points = parts_of(self.point, self.parameters)
        if share == 1:
            torch._foreach_copy_(self.parameters, points)
        else:
            torch._foreach_lerp_(self.parameters, points, share)

    def end(self, changed: bool = True) -> None:
        """Return the outer state to where it is kept, if it was changed."""
        self._stay.end(changed)

    def round(self) -> Communication[None]:
        """Average the displacements, make the outer step, and let the parameters go on from the point."""
        gradient = self.displacement()
        yield from self._context.average_vector(gradient, self._members)
        self.move(gradient)
        self.pull(1.0)
        self.end()


def outer_step(period: int) -> str:
    """Return what theory guarantees of an outer step after so many local ones."""
    return f"{period} local steps, then an outer one: SGD's rate with SGD inside (Reddi et al., 2021)"


def nesterov(point: Tensor, momentum: Tensor | None, gradient: Tensor, rate: float, mu: float) -> None:
    """Make one step in place, as torch.optim.SGD(nesterov=True) makes it; without a momentum, as SGD does."""
    if momentum is None:
        point.sub_(rate * gradient)
        return
    momentum.mul_(mu).add_(gradient)
    point.sub_(rate * (gradient + mu * momentum))

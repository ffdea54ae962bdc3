"""Hogwild: all workers write to the same memory without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from laconic.registry import knob, technique
from laconic.sync.base import State, Sync, average_buffers
from laconic.sync.contexts import ActorContext
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.worker import Communication


@technique("hogwild", paper="Recht, Re, Wright, Niu, NIPS 2011")
@dataclass(frozen=True)
class Hogwild(Sync[ActorContext]):
    """Optimizer steps without a lock on parameters that all workers of one host share in memory.

    Reads may see some coordinates before and some after another worker's write, and writes to the same coordinate may
    undo each other: harmless where gradients are sparse, so give sparse ones (`nn.Embedding(sparse=True)`), of which
    only the rows they touch are written. Each worker has its own optimizer state. On virtual workers a step happens at
    one moment; `delay` lets a share of its coordinates, drawn each time, be written with the worker's next step,
    up to N writes later, which is how inconsistent reads are replayed there.
    """

    delay: float = knob(0.0, low=0, high=1, doc="share of a step's coordinates that are written a step later")
    talks: ClassVar[str] = "shared"
    races: ClassVar[bool] = True
    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True

    @property
    def guarantee(self) -> str:
        return "no locks: proven where gradients are sparse (Recht et al., 2011)"

    @torch.no_grad()
    def stepping(self, context: ActorContext, state: State) -> Communication[State]:
        context.catch_up()
        self._write(context, state)
        before = copies(context.parameters) if self.delay else []
        context.apply()
        if not self.delay:
            return state
        draw = np.random.default_rng((context.seed, context.group.rank, context.step))
        deferred = []
        for parameter, x in zip(context.parameters, before, strict=True):
            slow = torch.from_numpy(draw.random(tuple(parameter.shape)) < self.delay)
            change = torch.where(slow, parameter - x, torch.zeros_like(x))
            parameter.sub_(change)
            deferred.append(change)
        return keep("late", deferred)
        yield

    def _write(self, context: ActorContext, state: State) -> None:
        """Write the coordinates that the last step deferred to this one."""
        if state:
            for parameter, change in zip(
                context.parameters, kept(state, "late", range(len(context.parameters))), strict=True
            ):
                parameter.add_(change)

    @torch.no_grad()
    def settle(self, context: ActorContext, state: State) -> Communication[State]:
        """Write what is deferred, wait until all workers have done so, and average the buffers."""
        context.catch_up()
        self._write(context, state)
        yield from context.mean([torch.zeros(1)])
        yield from average_buffers(context)
        return {}

    def leave(self, context: ActorContext, state: State) -> Communication[None]:
        """Complete all writes, and give every worker its own copy of the parameters again."""
        yield from self.settle(context, state)
        for group in context.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.clone()

"""Wave synchronous parallel, HetPipe's rule: pipelines with several mini-batches in flight over a parameter server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.ssp import SSP
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.values.cadence import Cadence
from laconic.worker import Communication


@technique("hetpipe", aliases=["wsp", "wave_synchronous"], paper="Park et al., USENIX ATC 2020")
@dataclass(frozen=True)
class HetPipe(SSP):
    """Every worker is a pipeline with `wave` mini-batches in flight; waves of so many are pushed as one update.

    A mini-batch starts with weights that hold the worker's own updates up to `wave` mini-batches before, since those
    between are in flight: its gradient is applied only when the one `wave` - 1 later has been computed. A wave's last
    update done, the sum of its updates is pushed, of which 1/N counts. A worker may be `staleness` waves ahead of the
    slowest, the paper's D. A mini-batch misses at most (D + 1) wave + wave - 2 earlier updates of another worker.
    With waves of one this is `ssp`, and with D = 0 `bsp`.

    Reading chosen: all mini-batches of a wave but the last one may enter the pipeline while the worker waits for the
    slowest, as the paper's bound implies. A step here is a mini-batch that enters the pipeline: it takes as long as the
    slowest stage (`laconic.parallel.planners.hetpipe` cuts the model), and is through after as many such times as there
    are mini-batches in flight.
    """

    wave: int = knob(4, low=1, gentler="less", doc="mini-batches in flight, and in a wave")

    has_memory: ClassVar[bool] = True

    @property
    def cadence(self) -> Cadence | None:
        return Cadence(period=self.wave, overlaps=False, pace="bounded")

    @property
    def missing_updates(self) -> int:
        """The most earlier updates of another worker that a mini-batch may miss."""
        return (self.staleness + 1) * self.wave + self.wave - 2

    @property
    def guarantee(self) -> str:
        return f"staleness at most {self.missing_updates}: SGD's rate, slowed by the bound (Park et al., 2020)"

    def init(self, context: ServerContext) -> State:
        zeros = [torch.zeros_like(p) for p in context.parameters]
        state = {**super().init(context), "entered": torch.zeros((), dtype=torch.int64)}
        for slot in range(self.wave - 1):
            state |= keep(f"in_flight.{slot}", copies(zeros))
        return state | keep("sum", zeros)

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        entered, which = int(state["entered"]), range(len(context.parameters))
        arrived = copies(context.gradients)
        if self.wave > 1:
            slot = f"in_flight.{entered % (self.wave - 1)}"
            arrived, oldest = kept(state, slot, which), arrived
            state = state | keep(slot, oldest)
        state = state | {"entered": torch.tensor(entered + 1)}
        through = entered - (self.wave - 1)
        if through < 0:
            return state
        state = self._update(context, state, arrived)
        if (through + 1) % self.wave:
            return state
        state, total = self._next_wave(context, state)
        return (yield from self.pull_if_stale(context, state, context.server.push(total, context.step)))

    def leave(self, context: ServerContext, state: State) -> Communication[None]:
        """Let what is in flight come through, and push what it changes."""
        entered, which = int(state["entered"]), range(len(context.parameters))
        through = max(entered - (self.wave - 1), 0)
        for batch in range(through, entered):
            state = self._update(context, state, kept(state, f"in_flight.{batch % (self.wave - 1)}", which))
        if entered % self.wave or through < entered:
            state, total = self._next_wave(context, state)
            yield [context.server.push(total, context.step)]
        yield from super().leave(context, state)

    def settle(self, context: ServerContext, state: State) -> Communication[State]:
        yield from self.leave(context, state)
        return self.init(context)

    def _update(self, context: ServerContext, state: State, gradients: list[Tensor]) -> State:
        """Step with a mini-batch's gradients, of which 1/N counts, and add the change to the wave's sum."""
        before = copies(context.parameters)
        for parameter, gradient in zip(context.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        context.apply()
        changes = [after.detach() - x for after, x in zip(context.parameters, before, strict=True)]
        copy_into(context.parameters, [x + u / context.group.size for x, u in zip(before, changes, strict=True)])
        sums = kept(state, "sum", range(len(changes)))
        return state | keep("sum", [total + u for total, u in zip(sums, changes, strict=True)])

    def _next_wave(self, context: ServerContext, state: State) -> tuple[State, list[Tensor]]:
        """Return the state in which nothing of the next wave is through, and the sum of the one that is."""
        total = kept(state, "sum", range(len(context.parameters)))
        return state | keep("sum", [torch.zeros_like(x) for x in total]), total

"""Stale synchronous parallel (SSP): no worker is more than a fixed number of clocks ahead of the slowest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, bounded_staleness, take_over
from laconic.sync.tensor_lists import copies, copy_into
from laconic.values.cadence import Cadence
from laconic.worker import Communication, Field, Handle


@technique("ssp", aliases=["stale_synchronous"], paper="Ho et al., NIPS 2013", worth_trying=["ssp(3) / none"])
@dataclass(frozen=True)
class SSP(ServerSync):
    """Add updates on a server; a worker at clock c sees all updates up to clock c - s - 1, and all of its own.

    s is the `staleness`, and a worker's clock counts its steps. Every worker steps its own optimizer and pushes the
    change, of which 1/N counts, so that s = 0 is `bsp` for linear optimizers (SGD with momentum among them). It may use
    the values it pulled for s clocks before it must pull again; then the server answers when the slowest worker is
    close enough.
    """

    staleness: int = knob(
        3, low=0, gentler="less", doc="clocks by which the fastest worker may be ahead of the slowest"
    )

    @property
    def cadence(self) -> Cadence | None:
        return Cadence(pace="bounded")

    @property
    def guarantee(self) -> str:
        return bounded_staleness(self.staleness)

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        if self.staleness > 0:
            store.add(push.tensors, 1 / store.size)
        else:  # no worker may see an update of the next clock before it has read the last one: all are added together
            waiting = store.memory.setdefault("waiting", {}).setdefault(str(push.clock), {})
            waiting[str(push.worker)] = copies(push.tensors)
            self._add_complete(store)
        return {}

    def _add_complete(self, store: Store) -> None:
        """Add the updates of clocks that every worker has reached, in the order of ranks."""
        waiting = store.memory.get("waiting", {})
        for clock in sorted(map(int, waiting)):
            if clock <= store.slowest:
                pushed = waiting.pop(str(clock))
                for worker in sorted(pushed, key=int):
                    store.add(pushed[worker], 1 / store.size)

    def lost(self, store: Store, worker: int) -> None:
        self._add_complete(store)

    def readable(self, store: Store, pull: Pull) -> bool:
        return store.slowest >= pull.clock - self.staleness

    def init(self, context: ServerContext) -> State:
        return {"stamp": torch.zeros((), dtype=torch.int64)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        before = copies(context.parameters)
        context.apply()
        changes = [after.detach() - x for after, x in zip(context.parameters, before, strict=True)]
        copy_into(context.parameters, [x + u / context.group.size for x, u in zip(before, changes, strict=True)])
        pushed = context.server.push(changes, context.step, **self.extra_fields(state))
        return (yield from self.pull_if_stale(context, state, pushed))

    def pull_if_stale(self, context: ServerContext, state: State, pushed: Handle) -> Communication[State]:
        """Go on with the parameters as they are while they are fresh enough; otherwise wait, and pull the server's."""
        if int(state["stamp"]) >= context.server.clock - self.staleness:
            return state
        (_, pulled) = yield [pushed, context.server.pull()]
        take_over(context, pulled)
        return {**state, "stamp": torch.tensor(pulled.lowest("slowest"))}

    def extra_fields(self, state: State) -> dict[str, Any]:
        """Return fields that a push carries besides the change."""
        return {}

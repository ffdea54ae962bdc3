"""Hybrid synchronous parallelism (HSP): ordered uploads, one update per round, and no worker idle for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, take_over
from laconic.sync.server_round import add_contribution, has_contributed, open_round, take_if_complete
from laconic.worker import Communication, Field, whole


@technique("hsp", paper="Li et al., ICPP 2022")
@dataclass(frozen=True)
class HSP(ServerSync):
    """Workers upload one after another; the mean of all is one update, and all workers get the result.

    A worker that has uploaded would wait for the others and the new weights. If that took long the last time, it
    computes the next gradient on the previous weights instead, which it downloads while it uploads its gradient: they
    are one version old, never more. Readings chosen: a worker computes ahead when its last wait was at least `ahead`
    times its computing, stale gradients count in full, and in every `fresh`-th iteration all workers wait, which
    measures the wait again. So stale gradients are few where waiting is short, and most where it is long.
    """

    ahead: float | None = knob(
        0.5, low=0, doc="ratio of waiting to computing from which a worker computes ahead; none: never"
    )
    fresh: int = knob(16, low=1, doc="iterations between two in which all wait for new weights")

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        open_round(store)

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        add_contribution(store, push)
        self._update(store)
        return {"staleness": tau}

    def _update(self, store: Store) -> None:
        if (everything := take_if_complete(store)) is not None:
            total, workers = everything
            store.apply([x / len(workers) for x in total], workers[-1])

    def lost(self, store: Store, worker: int) -> None:
        self._update(store)

    def readable(self, store: Store, pull: Pull) -> bool:
        if pull.fields["wants"] == "turn":
            return pull.worker == next((w for w in store.members if not has_contributed(store, w)), None)
        return pull.fields["wants"] == "newest" or not has_contributed(store, pull.worker)

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        return {}, () if pull.fields["wants"] == "turn" else None

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        return {"ahead": torch.tensor(False)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        computed = context.seconds - float(state["left"]) if "left" in state else None
        ahead, waited = self._computes_ahead(context, computed, state.get("waited")), state.get("waited")
        yield [context.server.pull(only=0, wants="turn")]
        outdated = ahead and bool(state["ahead"])
        newest = [context.server.pull(wants="newest")] if outdated else []  # downloaded during the upload
        *pulled, pushed = yield [*newest, context.server.push(context.gradients, context.step)]
        context.note(staleness=max(whole(fields, "staleness") for fields in pushed.fields))
        if not ahead:
            uploaded = context.seconds
            pulled = yield [context.server.pull(wants="update")]
            waited = torch.tensor(context.seconds - uploaded, dtype=torch.float64)
        for values in pulled:
            take_over(context, values)
        state = {"ahead": torch.tensor(ahead), "left": torch.tensor(context.seconds, dtype=torch.float64)}
        return state if waited is None else state | {"waited": waited}

    def _computes_ahead(self, context: ServerContext, computed: float | None, waited: Tensor | None) -> bool:
        if self.ahead is None or computed is None or waited is None or (context.step + 1) % self.fresh == 0:
            return False
        return float(waited) >= self.ahead * computed

"""AdaptiveRevision: AdaGrad rates per coordinate that account for delay, and corrections of steps taken meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.architecture.server import read_snapshots as tickets
from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import technique
from laconic.sync.server import PushPull
from laconic.worker import Field


@technique("adaptive_revision", paper="McMahan and Streeter, NIPS 2014")
@dataclass(frozen=True)
class AdaptiveRevision(PushPull):
    """Asynchronous AdaGrad whose sum also counts how a late gradient agrees with those applied since its pull.

    The learning rate is the paper's alpha; nothing else of the user's optimizer is used. The server keeps the sum of
    gradients as of each worker's pull (a ticket), so that pushes need not carry it. When a rate falls, the steps taken
    since that pull are scaled down to it. A pull that a restarted server has forgotten counts as fresh.
    """

    def open(self, store: Store) -> None:
        zeros, ones = ([make(value) for value in store.values] for make in (torch.zeros_like, torch.ones_like))
        store.memory.update(gbar=zeros, z=ones, zmax=[x.clone() for x in ones])

    @torch.no_grad()
    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        memory, alpha = store.memory, store.rate(push.worker)
        tickets.issue_first(store, lambda: self._sums(store))
        seen = tickets.redeem(store, push.worker, push.version) or memory["gbar"]
        parts = zip(store.values, push.tensors, memory["gbar"], memory["z"], memory["zmax"], seen, strict=True)
        for x, g, gbar, z, zmax, gbar_seen in parts:
            since = gbar - gbar_seen
            before = zmax.sqrt()
            z.addcmul_(g, g).addcmul_(g, since, value=2)
            torch.maximum(zmax, z, out=zmax)
            now = zmax.sqrt()
            x.addcdiv_(g, now, value=-alpha)
            x.add_(since * (1 / before - 1 / now), alpha=alpha)
            gbar.add_(g)
        tau = max(store.version - push.version, 0)
        store.version += 1
        return {"staleness": tau}

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        tickets.issue(store, pull.worker, lambda: self._sums(store))
        return {}, None

    def lost(self, store: Store, worker: int) -> None:
        tickets.forget(store, worker)

    def _sums(self, store: Store) -> list[Tensor]:
        return [gbar.clone() for gbar in store.memory["gbar"]]

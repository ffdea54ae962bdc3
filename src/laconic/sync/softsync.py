"""n-softsync: the server steps once it has enough gradients, each divided by its staleness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from laconic.architecture.server.actor import Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.server import PushPull
from laconic.theory.delay_rates import inverse_staleness
from laconic.worker import Field


@technique(
    "staleness_aware_lr",
    aliases=["softsync"],
    paper="Zhang, Gupta, Lian, Liu, IJCAI 2016",
    evidence="published",
    reproduces="the mean staleness of n-softsync among 30 learners is n (to 10 %), and rarely above 2n",
)
@dataclass(frozen=True)
class StalenessAware(PushPull):
    """Step on the mean of any floor(N/n) workers' gradients, in which one of staleness tau > 1 counts 1/tau.

    With n = 1 it is close to synchronous, though no worker waits; with n = N the server steps on every gradient. The
    mean staleness is close to n. The learning rate is the one that suits synchronous training. (The survey names the
    idea without a reference; this paper's system is the best-known of that name.)
    """

    n: int = knob(1, low=1, doc="server steps while each worker pushes once; at most N")

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        memory, tau = store.memory, max(store.version - push.version, 0)
        if "sum" not in memory:
            memory.update(sum=[torch.zeros_like(value) for value in store.values], count=0)
        for total, gradient in zip(memory["sum"], push.tensors, strict=True):
            total.add_(gradient, alpha=inverse_staleness(tau))
        memory["count"] += 1
        enough = max(1, store.size // self.n)
        if memory["count"] >= enough:
            store.apply([total / memory["count"] for total in memory["sum"]], push.worker)
            memory.clear()
        return {"staleness": tau}

"""Downpour SGD: replicas that fetch parameters and push gradients at intervals, independently of each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, take_over
from laconic.sync.tensor_lists import keep, kept
from laconic.worker import Communication, Field, whole


@technique("downpour", aliases=["downpour_sgd"], paper="Dean et al., NIPS 2012")
@dataclass(frozen=True)
class Downpour(ServerSync):
    """Every replica steps alone, pushes the sum of its gradients every `n_push` steps and fetches every `n_fetch`.

    Each shard steps on every arrival, with Adagrad of its own at `gamma` times the learning rate (the paper: about ten
    times the best fixed one), or with the user's optimizer, 1/N of the rate per push. Each shard has its own version,
    so that a fetched model may mix several. `warm_start` lets one replica train alone for that many updates; the
    others' gradients are dropped until then. Readings chosen: Adagrad's smoothing constant is torch's 1e-10; a
    replica's own steps are the user's optimizer's.
    """

    n_fetch: int = knob(1, low=1, gentler="less", doc="steps between two fetches")
    n_push: int = knob(1, low=1, gentler="less", doc="steps between two pushes")
    optimizer: str = knob("adagrad", choices=("adagrad", "user"), doc="what the server steps with")
    gamma: float = knob(10.0, above=0, doc="Adagrad's rate over the learning rate")
    warm_start: int = knob(0, low=0, doc="updates by one replica before the others take part")

    @property
    def period(self) -> int:
        return math.lcm(self.n_fetch, self.n_push)

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        if self.optimizer == "adagrad":
            kept = ("params", "lr", "weight_decay")
            groups = [{k: group[k] for k in kept if k in group} for group in store.optimizer.param_groups]
            store.optimizer = torch.optim.Adagrad(groups)

    def is_admitted(self, store: Store, worker: int) -> bool:
        """Return whether the server takes this worker's gradients: after the warm start, or from the first worker."""
        return store.version >= self.warm_start or worker == min(store.members, default=worker)

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        if self.is_admitted(store, push.worker):
            store.apply(push.tensors, push.worker, self.gamma if self.optimizer == "adagrad" else 1 / store.size)
        return {"staleness": tau}

    def readable(self, store: Store, pull: Pull) -> bool:
        return self.is_admitted(store, pull.worker)

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        return keep("sum", [torch.zeros_like(p) for p in context.parameters]) if self.n_push > 1 else {}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        accrued = context.gradients
        if self.n_push > 1:
            sums = kept(state, "sum", range(len(accrued)))
            accrued = [total + g for total, g in zip(sums, accrued, strict=True)]
        pushes, fetches = ((context.step + 1) % every == 0 for every in (self.n_push, self.n_fetch))
        if not fetches:
            context.apply()
        pushed = [context.server.push(accrued, context.step)] if pushes else []
        fetched = [context.server.pull()] if fetches else []
        answers = yield [*pushed, *fetched]
        if pushes:
            context.note(staleness=max(whole(fields, "staleness") for fields in answers[0].fields))
        if fetches:
            take_over(context, answers[-1])
            versions = [whole(fields, "version") for fields in answers[-1].fields]
            context.note(version_spread=max(versions) - min(versions))
        if self.n_push == 1:
            return state
        return keep("sum", [torch.zeros_like(a) if pushes else a for a in accrued])

"""Grouping stale synchronous parallel (GSSP): bounded staleness within groups of like speed, none among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from laconic.architecture.server.actor import Pull, Push, RelayedPush
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import take_over
from laconic.sync.ssp import SSP
from laconic.worker import Communication, Field


def groups_by_speed(seconds: Sequence[float], groups: int) -> list[int]:
    """Return each worker's group: workers are sorted by time and divided where times differ most, by ratio."""
    order = sorted(range(len(seconds)), key=lambda w: (seconds[w], w))
    steps = [seconds[b] / seconds[a] for a, b in pairwise(order)]
    cuts = sorted(sorted(range(len(steps)), key=lambda i: -steps[i])[: groups - 1])
    found = {w: sum(place > cut for cut in cuts) for place, w in enumerate(order)}
    return [found[w] for w in range(len(seconds))]


@technique("gssp", paper="Sun et al., IEEE Transactions on Cloud Computing 10(4), 2022")
@dataclass(frozen=True)
class GSSP(SSP):
    """Workers of like speed share a server with bounded staleness; servers send each other the sums of their updates.

    Every group's server holds the whole model. After as many pushes as it has members it sends their sum to all others,
    which add it on arrival: no group waits for another. Groups form after `profile` steps, from measured times of
    computing; the first ones are by rank. Readings chosen: servers broadcast sums (the published code) rather than
    gossip; groups are cut where sorted times differ most. With `keep` < 1 a slower group sends only the largest share
    of its sum, in proportion to its speed, and keeps the rest (GDTopK, ratio not published).
    """

    groups: int = knob(2, low=1, doc="groups, each with a server of the whole model")
    profile: int = knob(3, low=1, doc="steps after which groups form by speed")
    keep: float = knob(1.0, above=0, high=1, gentler="more", doc="share of its sum that the slowest group sends")

    @property
    def cadence(self) -> None:
        """What groups send each other depends on their speeds."""
        return None

    # ------------------------------------------------------------------------------------------ server

    def groups_of(self, size: int) -> list[list[int]]:
        count = min(self.groups, size)
        return [[w for w in range(size) if w * count // size == g] for g in range(count)]

    def open(self, store: Store) -> None:
        zeros = [torch.zeros_like(value) for value in store.values]
        store.memory = {"sum": zeros, "pushes": 0, "turn": 0, "times": {}, "slowness": 1.0}

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        store.memory["slowness"] = push.fields["slowness"]
        super().receive(store, push)
        for total, change in zip(store.memory["sum"], push.tensors, strict=True):
            total.add_(change)
        store.memory["pushes"] += 1
        return {}

    def receive_report(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        store.memory["times"][str(worker)] = fields["seconds"]

    def relay(self, store: Store) -> RelayedPush | None:
        memory = store.memory
        if memory["pushes"] < max(len(store.members), 1):
            return None
        memory["pushes"], memory["turn"] = 0, memory["turn"] + 1
        ratio = 1.0 if self.keep == 1.0 else max(self.keep, 1 / memory["slowness"])
        sent, memory["sum"] = _largest(memory["sum"], ratio)
        return RelayedPush(store.group, memory["turn"], sent)

    def receive_relay(self, store: Store, relay: RelayedPush) -> None:
        store.add(relay.tensors, 1 / store.size)

    def readable(self, store: Store, pull: Pull) -> bool:
        if pull.fields.get("wants") == "groups":
            return len(store.memory["times"]) == store.size
        return super().readable(store, pull)

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[torch.Tensor] | None]:
        if pull.fields.get("wants") != "groups":
            return {}, None
        times = [max(float(store.memory["times"][str(w)]), 1e-9) for w in range(store.size)]
        return {
            "groups": groups_by_speed(times, min(self.groups, store.size)),
            "slowness": [t / min(times) for t in times],
        }, ()

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        began = torch.tensor(context.seconds - context.waited_seconds, dtype=torch.float64)
        return {**super().init(context), "began": began, "slowness": torch.ones((), dtype=torch.float64)}

    def extra_fields(self, state: State) -> dict[str, Any]:
        return {"slowness": float(state["slowness"])}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        state = yield from super().stepping(context, state)
        if context.step + 1 == self.profile and self.groups > 1:
            return (yield from self._regroup(context, state))
        return state

    def _regroup(self, context: ServerContext, state: State) -> Communication[State]:
        """Send this worker's time to the coordinator, group 0's first shard, and move to the group it assigns."""
        busy = context.seconds - context.waited_seconds - float(state["began"])
        _, found = yield [
            context.server.report(only=0, group=0, seconds=busy / self.profile),
            context.server.pull(only=0, group=0, wants="groups"),
        ]
        groups, slowness = (found.fields[0][name] for name in ("groups", "slowness"))
        yield from context.server.move(groups[context.group.rank])
        (pulled,) = yield [context.server.pull_now()]
        take_over(context, pulled)
        context.note(group=groups[context.group.rank])
        stamp = torch.tensor(pulled.lowest("slowest"))
        return {**state, "stamp": stamp, "slowness": torch.tensor(slowness[context.group.rank], dtype=torch.float64)}


def _largest(tensors: Sequence[torch.Tensor], ratio: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the largest elements, as many as the ratio says, and the rest; zeros elsewhere in both."""
    if ratio >= 1.0:
        return [x.clone() for x in tensors], [torch.zeros_like(x) for x in tensors]
    everything = torch.cat([x.reshape(-1).abs() for x in tensors])
    least = everything.kthvalue(max(1, everything.numel() - int(ratio * everything.numel()) + 1)).values
    sent = [torch.where(x.abs() >= least, x, 0) for x in tensors]
    return sent, [x - s for x, s in zip(tensors, sent, strict=True)]

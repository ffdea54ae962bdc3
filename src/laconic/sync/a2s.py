"""Adaptive synchronous strategy: the fast wait for each other, the slow for nobody."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from laconic.architecture.server.machine import Pull, Push
from laconic.architecture.server.store import Store
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import Section, State
from laconic.sync.server import ServerSync, take_over
from laconic.worker import Field


@technique("a2s", paper="Tan et al., International Journal of Intelligent Systems 37(12), 2022")
@dataclass(frozen=True)
class A2S(ServerSync):
    """A barrier among workers that run ahead; gradients of the others count, for less, as they come.

    The server knows everybody's count of pushes and time per step. A worker is slow while its speed is below `slow`
    times that of the fastest; fast ones may differ by `threshold` pushes and are applied together, as their mean. A
    slow worker's gradient is applied on arrival with 1/(1+tau) of the rate and it never waits. Readings chosen (the
    paper's formulas are not established): speeds from time spent computing, since counts even out where workers wait
    for each other; a fixed barrier; that weight.
    """

    threshold: int = knob(0, low=0, doc="pushes by which fast workers may differ")
    slow: float = knob(
        0.6, low=0, doc="below this share of the largest speed a worker is slow; 0: nobody, 2: everybody"
    )

    def open(self, store: Store) -> None:
        store.memory = {"waiting": {}, "applied": {}, "seconds": {}}

    def fast(self, store: Store) -> list[int]:
        seconds = {w: store.memory["seconds"].get(str(w), 0.0) for w in store.clocks}
        least = min((t for t in seconds.values() if t > 0), default=0.0)
        return [w for w, t in seconds.items() if (least / t if t > 0 else 1.0) >= self.slow]

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        store.memory["seconds"][str(push.worker)] = push.fields["seconds"]
        if push.worker not in self.fast(store):
            store.apply(push.tensors, push.worker, 1 / store.size / (1 + tau))
            store.memory["applied"][str(push.worker)] = push.clock
        else:
            mine = store.memory["waiting"].get(str(push.worker))
            summed = push.tensors if mine is None else [a + b for a, b in zip(mine, push.tensors, strict=True)]
            store.memory["waiting"][str(push.worker)] = [x.clone() for x in summed]
        self._meet(store)
        return {"staleness": tau}

    def _meet(self, store: Store) -> None:
        """When every fast worker has brought something, all of it is one step; who is slow by now is not waited for."""
        waiting = store.memory["waiting"]
        if not waiting or not all(str(w) in waiting for w in self.fast(store)):
            return
        ranks = sorted(map(int, waiting))
        total = [torch.zeros_like(value) for value in store.values]
        for rank in ranks:
            for sum_, part in zip(total, waiting[str(rank)], strict=True):
                sum_.add_(part)
        mean = [x / len(ranks) for x in total]
        store.apply(mean, ranks[0], len(ranks) / store.size)
        store.memory["applied"].update({str(rank): store.clocks.get(rank, 0) for rank in ranks})
        store.memory["waiting"] = {}

    def readable(self, store: Store, pull: Pull) -> bool:
        fast = self.fast(store)
        if pull.worker not in fast or store.memory["applied"].get(str(pull.worker)) == pull.clock:
            return True
        return self.threshold > 0 and min(store.clocks[w] for w in fast) >= pull.clock - self.threshold

    def lost(self, store: Store, worker: int) -> None:
        store.memory["waiting"].pop(str(worker), None)
        store.memory["seconds"].pop(str(worker), None)
        self._meet(store)

    def init(self, section: Section) -> State:
        if len(section.server.shards) > 1:  # each would call others fast at the same moment, and wait for each other
            raise StrategyError("a2s decides who is fast in one place: write ps(shards=1)")
        return {"busy": torch.zeros((), dtype=torch.float64)}

    def stepping(self, section: Section, state: State) -> Generator[Any, Any, State]:
        busy = section.seconds - section.waited_seconds
        took = (busy - float(state["busy"])) if section.step else 0.0
        pushed = section.server.push(section.gradients, section.step, seconds=took)
        _, pulled = yield [pushed, section.server.pull()]
        take_over(section, pulled)
        return {"busy": torch.tensor(busy, dtype=torch.float64)}

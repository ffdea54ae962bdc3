"""Adaptive synchronous strategy: the fast wait for each other, the slow for nobody."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State, SyncContext
from laconic.sync.server import ServerSync, take_over
from laconic.sync.tensors import copies
from laconic.worker import Field, whole

_NONE = -1  # the round of a worker that has met nobody yet, or is slow


@technique("a2s", paper="Tan et al., International Journal of Intelligent Systems 37(12), 2022")
@dataclass(frozen=True)
class A2S(ServerSync):
    """A barrier among workers that run ahead; gradients of the others count, for less, as they come.

    The server knows everybody's count of pushes and time per step. A worker is slow while its speed is below `slow`
    times that of the fastest; fast ones may differ by `threshold` pushes and are applied together, as their mean. A
    slow worker's gradient is applied on arrival with 1/(1+tau) of the rate and it never waits. The first shard tells a
    worker whether it is fast and in which round it meets the others; its next push says so to all shards, and none of
    them judges by itself: they would wait for different workers. Readings chosen (the paper's formulas are not
    established): speeds from time spent computing, since counts even out where workers wait for each other; a fixed
    barrier; that weight.
    """

    threshold: int = knob(0, low=0, doc="pushes by which fast workers may differ")
    slow: float = knob(
        0.6, low=0, doc="below this share of the largest speed a worker is slow; 0: nobody, 2: everybody"
    )

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        """`rounds`: the last one that each fast worker has come to."""
        fast = [str(w) for w in store.members if self.slow <= 1]
        store.memory = {"waiting": {}, "rounds": dict.fromkeys(fast, _NONE), "done": _NONE, "seconds": {}}

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        memory, worker, turn = store.memory, str(push.worker), whole(push.fields, "round")
        memory["seconds"][worker] = push.fields["seconds"]
        if turn == _NONE:
            memory["rounds"].pop(worker, None)
        else:
            memory["rounds"][worker] = turn
        if turn > memory["done"]:
            memory["waiting"].setdefault(str(turn), {})[worker] = copies(push.tensors)
        else:  # slow, or newly fast and late for this round here
            store.apply(push.tensors, push.worker, 1 / store.size / (1 + tau))
        self._meet(store)
        return {"staleness": tau}

    def _meet(self, store: Store) -> None:
        """What was brought to a round is one step, as soon as every fast worker has come that far."""
        waiting = store.memory["waiting"]
        for turn in sorted(map(int, waiting)):
            if not self._all_at(store, turn):
                return
            brought = waiting.pop(str(turn))
            ranks = sorted(map(int, brought))
            total = copies(brought[str(ranks[0])])
            for rank in ranks[1:]:
                for sum_, part in zip(total, brought[str(rank)], strict=True):
                    sum_.add_(part)
            store.memory["done"] = turn
            store.apply([x / len(ranks) for x in total], ranks[0], len(ranks) / store.size)

    def _all_at(self, store: Store, turn: int) -> bool:
        """Whether all fast workers have come to this round."""
        rounds = store.memory["rounds"]
        return all(rounds.get(str(w), turn) >= turn for w in store.members)

    def readable(self, store: Store, pull: Pull) -> bool:
        return self._all_at(store, store.memory["rounds"].get(str(pull.worker), _NONE) - self.threshold)

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        """The round in which this worker meets the others next."""
        seconds = {w: store.memory["seconds"].get(str(w), 0.0) for w in store.members}
        least = min((t for t in seconds.values() if t > 0), default=0.0)
        mine = seconds.get(pull.worker, 0.0)
        if (least / mine if mine > 0 else 1.0) < self.slow:
            return {"round": _NONE}, None
        return {"round": 1 + max(store.memory["done"], store.memory["rounds"].get(str(pull.worker), _NONE))}, None

    def lost(self, store: Store, worker: int) -> None:
        for known in ("rounds", "seconds"):
            store.memory[known].pop(str(worker), None)
        self._meet(store)

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: SyncContext) -> State:
        first = torch.tensor(0 if self.slow <= 1 else _NONE)
        return {"busy": torch.zeros((), dtype=torch.float64), "round": first}

    def stepping(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        busy = context.seconds - context.waited_seconds
        took = (busy - float(state["busy"])) if context.step else 0.0
        pushed = context.server.push(context.gradients, context.step, seconds=took, round=int(state["round"]))
        _, pulled = yield [pushed, context.server.pull()]
        take_over(context, pulled)
        turn = torch.tensor(whole(pulled.fields[0], "round"))
        return {"busy": torch.tensor(busy, dtype=torch.float64), "round": turn}

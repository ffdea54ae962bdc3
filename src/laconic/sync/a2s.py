"""Adaptive synchronous strategy (A2S): fast workers wait for each other, slow workers wait for none."""

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
from laconic.sync.tensor_lists import copies
from laconic.worker import Communication, Field, whole

_NONE = -1  # the round of a worker that has joined none yet, or is slow


@technique("a2s", paper="Tan et al., International Journal of Intelligent Systems 37(12), 2022")
@dataclass(frozen=True)
class A2S(ServerSync):
    """Put a barrier among fast workers only; apply slow workers' gradients on arrival, at a smaller rate.

    The server knows every worker's count of pushes and time per step. A worker is slow while its speed is below `slow`
    times that of the fastest; fast ones may differ by `threshold` pushes and are applied together, as their mean. A
    slow worker's gradient is applied on arrival with 1/(1+tau) of the rate, where tau is the number of updates since
    the worker pulled, and it never waits. The first shard decides whether a worker is fast and which round it joins
    next, and the worker's next push passes that on to all shards: if each shard decided by itself, they would wait for
    different workers. Readings chosen (the paper's formulas are not established): speeds from time spent computing,
    since counts even out where workers wait for each other; a fixed barrier; that weight.
    """

    threshold: int = knob(0, low=0, doc="pushes by which fast workers may differ")
    slow: float = knob(
        0.6, low=0, doc="below this share of the largest speed a worker is slow; 0: nobody, 2: everybody"
    )

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        """Begin with no pushes waiting; `rounds` holds the last round that each fast worker has reached."""
        fast = [str(w) for w in store.members if self.slow <= 1]
        store.memory = {"waiting": {}, "rounds": dict.fromkeys(fast, _NONE), "done": _NONE, "seconds": {}}

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        memory, worker, round_ = store.memory, str(push.worker), whole(push.fields, "round")
        memory["seconds"][worker] = push.fields["seconds"]
        if round_ == _NONE:
            memory["rounds"].pop(worker, None)
        else:
            memory["rounds"][worker] = round_
        if round_ > memory["done"]:
            memory["waiting"].setdefault(str(round_), {})[worker] = copies(push.tensors)
        else:  # the worker is slow, or has become fast too late for this round
            store.apply(push.tensors, push.worker, 1 / store.size / (1 + tau))
        self._apply_complete(store)
        return {"staleness": tau}

    def _apply_complete(self, store: Store) -> None:
        """Apply the mean of each round's gradients as one step, once every fast worker has reached that round."""
        waiting = store.memory["waiting"]
        for round_ in sorted(map(int, waiting)):
            if not self._all_at(store, round_):
                return
            pushed = waiting.pop(str(round_))
            ranks = sorted(map(int, pushed))
            total = copies(pushed[str(ranks[0])])
            for rank in ranks[1:]:
                for sum_, part in zip(total, pushed[str(rank)], strict=True):
                    sum_.add_(part)
            store.memory["done"] = round_
            store.apply([x / len(ranks) for x in total], ranks[0], len(ranks) / store.size)

    def _all_at(self, store: Store, round_: int) -> bool:
        """Return whether all fast workers have reached this round."""
        rounds = store.memory["rounds"]
        return all(rounds.get(str(w), round_) >= round_ for w in store.members)

    def readable(self, store: Store, pull: Pull) -> bool:
        return self._all_at(store, store.memory["rounds"].get(str(pull.worker), _NONE) - self.threshold)

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        """Return the number of the round that this worker joins next, or -1 where it is slow."""
        seconds = {w: store.memory["seconds"].get(str(w), 0.0) for w in store.members}
        least = min((t for t in seconds.values() if t > 0), default=0.0)
        mine = seconds.get(pull.worker, 0.0)
        if (least / mine if mine > 0 else 1.0) < self.slow:
            return {"round": _NONE}, None
        return {"round": 1 + max(store.memory["done"], store.memory["rounds"].get(str(pull.worker), _NONE))}, None

    def lost(self, store: Store, worker: int) -> None:
        for known in ("rounds", "seconds"):
            store.memory[known].pop(str(worker), None)
        self._apply_complete(store)

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        first = torch.tensor(0 if self.slow <= 1 else _NONE)
        return {"busy": torch.zeros((), dtype=torch.float64), "round": first}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        busy = context.seconds - context.waited_seconds
        took = (busy - float(state["busy"])) if context.step else 0.0
        pushed = context.server.push(context.gradients, context.step, seconds=took, round=int(state["round"]))
        _, pulled = yield [pushed, context.server.pull()]
        take_over(context, pulled)
        round_ = torch.tensor(whole(pulled.fields[0], "round"))
        return {"busy": torch.tensor(busy, dtype=torch.float64), "round": round_}

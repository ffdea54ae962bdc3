"""Round-robin synchronous parallel (R2SP): workers access the server one at a time, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.equal_times import divide, fit
from laconic.sync.server import ServerSync, take_over
from laconic.worker import Communication, Field

_KEPT_TIMES = 32  # measured times of a worker, by which its speed is fitted


@technique("r2p", aliases=["r2sp", "round_robin"], paper="Chen, Wang, Li, IEEE INFOCOM 2019 (R2SP)")
@dataclass(frozen=True)
class R2P(ServerSync):
    """Push, pull and compute in a fixed cyclic order: one transfer at a time, and every gradient N - 1 updates old.

    A worker's turn begins when the worker before it reports that it has received its parameters. So turns spread over
    the period by themselves, and the server's link carries one transfer at full speed instead of N that share it. All
    wait for a worker that is not ready on its turn; to avoid that, `batch` divides that many samples so that all
    compute equally long, from times t(b) = p·b + q of b samples measured on every worker. Readings chosen: an update
    counts by its share of the batch (1/N without `batch`), and batches are divided again every `retune` turns.
    """

    batch: int | None = knob(
        None, low=1, doc="samples of all workers together; none: every worker uses the script's batch"
    )
    retune: int = knob(10, low=1, doc="turns of every worker between two divisions of the batch")
    steers: ClassVar[bool] = True

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        store.memory = {"last": -1, "times": {}, "since": {}, "batches": {}}

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        tau = max(store.version - push.version, 0)
        if self.batch is None:
            store.apply(push.tensors, push.worker, 1 / store.size)
            return {"staleness": tau}
        batch = push.fields["batch"]
        assert isinstance(batch, int)
        store.apply(push.tensors, push.worker, batch / self.batch)
        self._learn(store, str(push.worker), batch, push.fields.get("seconds"))
        return {"staleness": tau, "batch": store.memory["batches"].get(str(push.worker), batch)}

    def _learn(self, store: Store, worker: str, batch: int, seconds: Field) -> None:
        memory, members = store.memory, list(map(str, store.members))
        if isinstance(seconds, float):
            memory["times"][worker] = [*memory["times"].get(worker, []), [float(batch), seconds]][-_KEPT_TIMES:]
            memory["since"][worker] = memory["since"].get(worker, 0) + 1
        if all(memory["since"].get(w, 0) >= self.retune for w in members) and self.batch is not None:
            shares = divide(self.batch, [fit(memory["times"][w]) for w in members])
            memory["batches"], memory["since"] = dict(zip(members, shares, strict=True)), {}

    def receive_report(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        """Note that a worker's turn is over."""
        store.memory["last"] = worker

    def readable(self, store: Store, pull: Pull) -> bool:
        if pull.fields["wants"] != "turn":
            return True
        later = [w for w in store.members if w > store.memory["last"]]
        return pull.worker == (later or store.members or [-1])[0]

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        return {}, () if pull.fields["wants"] == "turn" else None

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        if self.batch is None:
            return {}
        rank, size = context.group.rank, context.group.size
        mine = max(1, self.batch // size + (rank < self.batch % size))
        context.steer(mine, 1.0)
        return {"batch": torch.tensor(mine)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        batch = None if self.batch is None else int(state["batch"])
        computed = context.seconds - float(state["left"]) if "left" in state else None
        yield [context.server.pull(only=0, wants="turn")]
        pushed, pulled = yield [
            context.server.push(context.gradients, context.step, batch=batch, seconds=computed),
            context.server.pull(wants="values"),
        ]
        context.server.report(only=0)
        take_over(context, pulled)
        context.note(staleness=max(int(fields["staleness"]) for fields in pushed.fields))
        if self.batch is None:
            return state
        mine = int(pushed.fields[0]["batch"])
        context.steer(mine, 1.0)
        context.note(batch=mine, compute_seconds=computed or 0.0)
        return {"batch": torch.tensor(mine), "left": torch.tensor(context.seconds, dtype=torch.float64)}

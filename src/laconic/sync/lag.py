"""Lazily aggregated gradients (LAG): a gradient that has hardly changed is not sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, take_over
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.worker import Communication, Field

_DEFAULT_XI = {"worker": 0.1, "server": 1.0}


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """Return the squared norm of all tensors together."""
    return sum(float(x.double().square().sum()) for x in tensors)


def squared_distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the squared distance of two points, each given as a list of tensors."""
    return squared_norm([a.detach() - b.detach() for a, b in zip(some, others, strict=True)])


@technique(
    "lag",
    aliases=["lag_wk", "lazy_gradients"],
    paper="Chen, Giannakis, Sun, Yin, NeurIPS 2018",
    evidence="published",
    reproduces="lemma on lazy communication: L² ≤ ξ/(α²M²d) makes at most k/(d + 1) uploads in k steps",
)
@dataclass(frozen=True)
class LAG(ServerSync):
    """The server steps on the mean of the last gradient that each worker has uploaded, however old.

    A worker uploads when its gradient has changed more than the parameters did recently: when the squared change is
    above xi/rate² times the sum of the last `history` squared steps (with the mean of losses in place of the paper's
    sum, a·M is the learning rate). With `by=worker` every worker computes and compares its gradients (LAG-WK). With
    `by=server` the server asks a worker for a gradient when L² times the squared distance from the point of its last
    upload is above the threshold; other workers get no parameters (LAG-PS). They still run the script's backward, whose
    gradients their step drops. The smoothness L is estimated from a worker's uploads unless `smoothness` gives it.
    Gradients are sent as they are, not as differences: as many bytes, and nothing is lost to rounding. The rule is for
    full gradients, since the noise of minibatches looks like change.
    """

    by: str = knob("worker", choices=("worker", "server"), doc="who decides whether a worker uploads")
    xi: float | None = knob(
        None, low=0, doc="factor of the threshold; none: 0.1 where workers decide, 1 where the server does"
    )
    history: int = knob(10, low=1, doc="steps whose lengths make the threshold")
    smoothness: tuple[float, ...] = knob((), above=0, doc="L of every worker, for by=server; none: estimated")
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}

    def threshold(self, changes: Sequence[float], rate: float) -> float:
        """Return the squared change above which a gradient is uploaded, from the squared lengths of the last steps."""
        return (_DEFAULT_XI[self.by] if self.xi is None else self.xi) * sum(changes) / rate**2

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        store.memory = {
            "gradients": {}, "spoken": [], "by": 0,
            "asked": None, "places": {}, "changes": [], "smoothness": {},
        }  # fmt: skip

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        memory, worker = store.memory, str(push.worker)
        if self.by == "server":
            self._learn(store, push)
            memory["places"][worker] = copies(store.values)
        memory["gradients"][worker] = copies(push.tensors)
        memory["by"] = push.worker
        self._count_answer(store, push.worker)
        return {}

    def receive_report(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        """Note that this worker uploads no new gradient in this step."""
        self._count_answer(store, worker)

    def lost(self, store: Store, worker: int) -> None:
        store.memory["gradients"].pop(str(worker), None)
        self._step(store)

    def _count_answer(self, store: Store, worker: int) -> None:
        """Note that a worker has answered in this step, with a gradient or without, and step when all have."""
        store.memory["spoken"].append(worker)
        self._step(store)

    def _step(self, store: Store) -> None:
        """Step, once all workers have answered, on the mean of their last gradients, in the order of ranks."""
        memory = store.memory
        if not memory["spoken"] or not all(w in memory["spoken"] for w in store.members):
            return
        memory["spoken"] = []
        before = copies(store.values)
        gradients = lagged_sum(store)
        store.apply([x / len(memory["gradients"]) for x in gradients], memory["by"])
        if self.by == "server":
            memory["changes"] = [*memory["changes"], squared_distance(store.values, before)][-self.history :]
            memory["asked"] = [w for w in store.members if self._is_asked(store, str(w))]

    def _learn(self, store: Store, push: Push) -> None:
        """Estimate the smoothness of this worker's loss: the fastest change of its gradient seen so far."""
        memory, worker = store.memory, str(push.worker)
        if self.smoothness:
            memory["smoothness"][worker] = self.smoothness[push.worker % len(self.smoothness)]
        elif worker in memory["places"] and (distance := squared_distance(store.values, memory["places"][worker])) > 0:
            seen = (squared_distance(push.tensors, memory["gradients"][worker]) / distance) ** 0.5
            memory["smoothness"][worker] = max(seen, memory["smoothness"].get(worker, 0.0))

    def _is_asked(self, store: Store, worker: str) -> bool:
        memory = store.memory
        if worker not in memory["smoothness"]:
            return True
        rate = float(store.optimizer.param_groups[0]["lr"])
        changed = memory["smoothness"][worker] ** 2 * squared_distance(store.values, memory["places"][worker])
        return bool(changed > self.threshold(memory["changes"], rate))

    def readable(self, store: Store, pull: Pull) -> bool:
        return pull.worker not in store.memory["spoken"]

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        asked = store.memory["asked"] is None or pull.worker in store.memory["asked"]
        return {"asked": asked}, None if asked else ()

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        if self.by == "server" and len(context.server.shards) > 1:
            raise StrategyError(
                "lag(by=server) looks at the whole model, which one shard must hold; write ps(shards=1)"
            )
        return {"changes": torch.zeros(self.history, dtype=torch.float64), "asked": torch.tensor(True)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        gradients, state = copies(context.gradients), dict(state)
        uploads = bool(state["asked"]) if self.by == "server" else self._has_changed(context, state, gradients)
        if uploads:
            sent = context.server.push(gradients, context.step)
            state |= keep("sent", gradients) if self.by == "worker" else {}
        else:
            sent = context.server.report()
        _, pulled = yield [sent, context.server.pull()]
        state["uploads"] = torch.as_tensor(state.get("uploads", 0)) + int(uploads)
        context.note(uploads=int(state["uploads"]))
        state["asked"] = torch.tensor(bool(pulled.tensors))
        if pulled.tensors:
            change = squared_distance(pulled.tensors, context.parameters)
            state["changes"] = torch.cat([state["changes"][1:], torch.tensor([change], dtype=torch.float64)])
            take_over(context, pulled)
        return state

    def _has_changed(self, context: ServerContext, state: State, gradients: list[Tensor]) -> bool:
        if "sent.0" not in state:
            return True
        change = squared_distance(gradients, kept(state, "sent", range(len(gradients))))
        return change > self.threshold(state["changes"].tolist(), context.rate)


def lagged_sum(store: Store) -> list[Tensor]:
    """Return the sum of the gradients that the workers uploaded last."""
    first, *others = (store.memory["gradients"][w] for w in sorted(store.memory["gradients"], key=int))
    totals = copies(first)
    for gradients in others:
        for total, gradient in zip(totals, gradients, strict=True):
            total.add_(gradient)
    return totals

"""Flexible synchronous parallel (FSP): a barrier is set when local steps begin to gain less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, take_over
from laconic.sync.server_round import add_contribution, open_round, take_if_complete
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.worker import Communication, Field


def breakpoint_of(work: Sequence[float], gain: Sequence[float]) -> float:
    """Return where a curve that rises fast and then slowly bends, by the best continuous fit of two straight pieces."""
    u, y = np.asarray(work, dtype=float), np.asarray(gain, dtype=float)
    if len(u) < 5:
        return float(u[-1]) if len(u) else 0.0
    best, found = np.inf, float(u[-1])
    for bend in np.linspace(u[1], u[-2], 256):
        design = np.stack([np.ones_like(u), np.minimum(u, bend), np.maximum(u - bend, 0)], axis=1)
        fit, *_ = np.linalg.lstsq(design, y, rcond=None)
        error = float(np.square(design @ fit - y).sum())
        if error < best and fit[2] <= fit[1]:
            best, found = error, float(bend)
    return found


@technique("fsp", paper="Wang et al., IEEE TPDS 34(2), 2023")
@dataclass(frozen=True)
class FSP(ServerSync):
    """Local steps until the server calls a barrier, set where the gain of the last interval began to slow down.

    Every worker reports its loss with each step. When an interval is over, its gain (fall of the mean loss) over work
    (steps of all) is fitted by two straight pieces, and the next interval ends at the bend; an interval without a bend
    makes the next one longer. Every worker stops after its present step, and changes are averaged, weighted by steps
    made. Readings chosen (the paper's text is not available): that fit, the training loss as gain, those weights.
    """

    first: int = knob(8, low=2, doc="steps per worker in the first interval")
    longest: int = knob(256, low=2, doc="steps per worker in any interval")

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        store.memory = {"interval": 0, "called": -1, "limit": self.first * store.size, "weight": 0.0}
        store.memory |= {"work": 0, "losses": [], "latest": {}}
        open_round(store)

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        weight = float(push.fields["steps"])  # type: ignore[arg-type]
        add_contribution(store, push, weight)
        store.memory["weight"] += weight
        self._close(store)
        return {}

    def receive_report(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        """Count a step that a worker has made, with its loss, and call the barrier when the interval is over."""
        memory = store.memory
        if fields["interval"] != memory["interval"]:
            return
        memory["work"] += 1
        if (loss := fields.get("loss")) is not None:
            memory["latest"][str(worker)] = loss
            memory["losses"].append(sum(memory["latest"].values()) / len(memory["latest"]))
        if memory["work"] >= memory["limit"]:
            memory["called"] = memory["interval"]

    def _close(self, store: Store) -> None:
        """Average the changes once all members have pushed theirs, and set the next interval's length."""
        memory, everything = store.memory, take_if_complete(store)
        if everything is None:
            return
        store.add(everything[0], 1 / memory["weight"])
        losses = memory["losses"]
        if len(losses) >= 5:
            bend = breakpoint_of(range(1, len(losses) + 1), [losses[0] - loss for loss in losses])
            longer = 2 * memory["limit"] if bend > 0.75 * memory["limit"] else bend
            memory["limit"] = int(min(max(longer, 2 * store.size), self.longest * store.size))
        memory.update(interval=memory["interval"] + 1, weight=0.0, work=0, losses=[])

    def readable(self, store: Store, pull: Pull) -> bool:
        interval = int(pull.fields["interval"])  # type: ignore[arg-type]
        if pull.fields["wants"] == "call":
            return bool(store.memory["called"] >= interval)
        return bool(store.memory["interval"] > interval)

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        fields = {"interval": store.memory["interval"], "limit": store.memory["limit"]}
        return (fields, ()) if pull.fields["wants"] == "call" else (fields, None)

    def lost(self, store: Store, worker: int) -> None:
        self._close(store)

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        anchor = keep("x", copies(context.parameters))
        return {**anchor, "interval": torch.tensor(0), "steps": torch.tensor(0)}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        context.apply()
        interval, steps = int(state["interval"]), int(state["steps"]) + 1
        report: dict[str, Any] = {"interval": interval}
        if (loss := context.logged("loss")) is not None:
            report["loss"] = loss
        context.server.report(only=0, **report)
        if not context.is_in_flight("call"):
            context.start("call", _call(context, interval))
        if not context.has_arrived("call"):
            return {**state, "steps": torch.tensor(steps)}
        yield from context.wait_for("call")
        anchors = kept(state, "x", range(len(context.parameters)))
        changes = [p.detach() - x for p, x in zip(context.parameters, anchors, strict=True)]
        _, pulled = yield [
            context.server.push(changes, context.step, steps=steps),
            context.server.pull(wants="values", interval=interval),
        ]
        take_over(context, pulled)
        context.note(interval=pulled.lowest("limit"), local_steps=steps)
        anchor = keep("x", copies(context.parameters))
        return {**anchor, "interval": torch.tensor(interval + 1), "steps": torch.tensor(0)}


def _call(context: ServerContext, interval: int) -> Communication[Any]:
    (called,) = yield [context.server.pull(only=0, wants="call", interval=interval)]
    return called

"""ASHL: local steps in proportion to speed, first without any waiting, then with bounded staleness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.server.actor import Pull, Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import ServerContext
from laconic.sync.server import ServerSync, bounded_staleness, take_over
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.worker import Communication, Field


def local_steps(step_seconds: Sequence[float], transfer_seconds: Sequence[float], least: int) -> list[int]:
    """Return each worker's local steps, such that all rounds take as long as `least` steps of the slowest worker."""
    pairs = list(zip(step_seconds, transfer_seconds, strict=True))
    longest = max(least * p + q for p, q in pairs)
    return [max(least, round((longest - q) / p)) if p > 0 else least for p, q in pairs]


@technique("ashl", paper="Shen et al., IEEE Transactions on Computers, 2023")
@dataclass(frozen=True)
class ASHL(ServerSync):
    """Give fast workers more local steps, so that rounds take equally long; asynchronous until the loss has fallen.

    The first round is one step, by which the server learns how long a step and a transfer take. In the coarse stage the
    slowest worker makes `coarse` steps and the others more, changes are merged on arrival (1/N of each of N workers),
    and nobody waits. When the mean of the losses last logged is below `switch`, the fine stage begins: `fine` steps for
    the slowest, and no worker more than `staleness` rounds ahead. Readings chosen (abstract and survey only): the
    weight 1/N, and these defaults.
    """

    coarse: int = knob(8, low=1, doc="local steps of the slowest worker before the switch")
    fine: int = knob(1, low=1, doc="local steps of the slowest worker after it")
    staleness: int = knob(2, low=0, gentler="less", doc="rounds by which a worker may be ahead after the switch")
    switch: float = knob(1.0, doc="loss below which the fine stage begins")

    @property
    def guarantee(self) -> str:
        return bounded_staleness(self.staleness)

    # ------------------------------------------------------------------------------------------ server

    def open(self, store: Store) -> None:
        store.memory = {
            "steps": {},
            "transfers": {},
            "losses": {},
            "stage": "fine" if self.switch == math.inf else "coarse",
        }

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        store.add(push.tensors, 1 / store.size)
        worker, memory = str(push.worker), store.memory
        memory["steps"].setdefault(worker, push.fields["step_seconds"])
        memory["transfers"].setdefault(worker, push.fields["transfer_seconds"])
        if (loss := push.fields.get("loss")) is not None:
            memory["losses"][worker] = loss
            if sum(memory["losses"].values()) / len(memory["losses"]) < self.switch:
                memory["stage"] = "fine"
        return {}

    def readable(self, store: Store, pull: Pull) -> bool:
        return store.memory["stage"] == "coarse" or store.slowest >= pull.clock - self.staleness

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        memory = store.memory
        known = sorted(memory["steps"], key=int)
        least = self.fine if memory["stage"] == "fine" else self.coarse
        steps = local_steps([memory["steps"][w] for w in known], [memory["transfers"][w] for w in known], least)
        mine = dict(zip(known, steps, strict=True)).get(str(pull.worker), 1)
        return {"steps": mine, "fine": memory["stage"] == "fine"}, None

    # ------------------------------------------------------------------------------------------ worker

    def init(self, context: ServerContext) -> State:
        anchor = keep("x", copies(context.parameters))
        clock = torch.tensor([context.seconds, context.waited_seconds, 0.0], dtype=torch.float64)
        return {**anchor, "left": torch.tensor(1), "done": torch.tensor(0), "clock": clock}

    def stepping(self, context: ServerContext, state: State) -> Communication[State]:
        context.apply()
        left, done = int(state["left"]) - 1, int(state["done"]) + 1
        if left > 0:
            return {**state, "left": torch.tensor(left), "done": torch.tensor(done)}
        began, waited, transfer = state["clock"].tolist()
        busy = (context.seconds - began) - (context.waited_seconds - waited)
        anchors = kept(state, "x", range(len(context.parameters)))
        changes = [p.detach() - x for p, x in zip(context.parameters, anchors, strict=True)]
        asked = context.seconds
        report: dict[str, Any] = {"step_seconds": busy / done, "transfer_seconds": transfer}
        if (loss := context.logged("loss")) is not None:
            report["loss"] = loss
        (_,) = yield [context.server.push(changes, context.step, **report)]
        transfer = context.seconds - asked
        (pulled,) = yield [context.server.pull()]
        take_over(context, pulled)
        context.note(local_steps=pulled.lowest("steps"), fine=float(bool(pulled.fields[0]["fine"])))
        clock = torch.tensor([context.seconds, context.waited_seconds, transfer], dtype=torch.float64)
        anchor = keep("x", copies(context.parameters))
        return {**anchor, "left": torch.tensor(pulled.lowest("steps")), "done": torch.tensor(0), "clock": clock}

"""MIPD: workers push the important half of each layer to an asynchronous server, which compensates for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from laconic.architecture.server.actor import Push
from laconic.architecture.server.store import Store
from laconic.registry import knob, named_sentence, technique
from laconic.sync.asp import ASP
from laconic.sync.contexts import ServerContext
from laconic.worker import Field

_PAPER = "Zhang, Wang, IEEE TPDS 33(11), 2022"


@technique("smoothed_asp", paper=_PAPER)
@dataclass(frozen=True)
class SmoothedASP(ASP):
    """`asp` whose server smooths what it receives, so that workers need no memory of what they leave out.

    For each value the server keeps ĝ = a·g + (1-a)·ĝ over the gradients g received. A value that the previous push had
    left out steps by ĝ, all others by the gradient itself; what a push leaves out is not touched. So it is `asp` where
    nothing is left out. A compression marks what it leaves out by -0.0 (as `important` does), which no gradient that is
    sent equals. Reading chosen: compensation is due where something was left out, and ĝ begins with the first gradient.
    """

    smoothing: float = knob(0.5, above=0, high=1, doc="a: weight of the gradient just received; 1: nothing is smoothed")

    def open(self, store: Store) -> None:
        store.memory["smoothed"] = [torch.full_like(value, torch.nan) for value in store.values]  # nothing was received
        store.memory["came"] = [torch.ones_like(value, dtype=torch.bool) for value in store.values]

    @torch.no_grad()
    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        present = [~(g.eq(0) & g.signbit()) for g in push.tensors]
        due = []
        for g, now, smoothed, last in zip(
            push.tensors, present, store.memory["smoothed"], store.memory["came"], strict=True
        ):
            mixed = torch.lerp(torch.where(smoothed.isnan(), g, smoothed), g, self.smoothing)
            smoothed.copy_(torch.where(now, mixed, smoothed))
            due.append(torch.where(now & ~last, smoothed, g))
        store.memory["came"] = present
        touched = sum(int(now.sum()) for now in present)
        return {**super().receive(store, replace(push, tensors=due)), "touched": touched}

    def outgoing(self, context: ServerContext) -> list[Tensor]:
        """Return the gradients with negative zeros made positive, since -0.0 marks values that are left out."""
        return [g + 0.0 for g in context.gradients]


named_sentence(
    "mipd",
    "smoothed_asp / important(0.5)+zipml(levels=16) / parameter_server",
    axis="compression",
    paper=_PAPER,
    doc="""Each layer's gradients above its own limit, at most half of them, in four bits, to a server that smooths.

    Values are coded by levels fitted to the layer's own gradients. Readings chosen: importance is a gradient's size
    relative to the layer's root mean square, so that each layer has a limit of its own; four bits; a = 1/2.
    """,
    formula="q = 4 bits of x_i where |x_i| ≥ z·rms(layer); after a gap the server steps by ĝ ← ĝ + (q - ĝ)/2, else q",
)

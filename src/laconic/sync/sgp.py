"""Stochastic gradient push (SGP): gossip over directed graphs, without waiting for an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import MixingContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import Communication


@technique(
    "sgp",
    aliases=["stochastic_gradient_push", "push_sum"],
    paper="Assran, Loizou, Ballas, Rabbat, ICML 2019, arXiv 1811.10792",
)
@dataclass(frozen=True)
class SGP(Gossiping):
    """Push-sum: a worker sends shares of its (x, w) to neighbours and keeps the rest; its model is z = x/w.

    The weight w, which begins as 1, is sent with x and removes the bias of graphs in which some workers have more
    receivers than others. With `overlap` a worker waits for a message only after that many steps; the message is added
    in that step, even if it arrives sooner, so that a run does not depend on its timing. Nothing is lost: messages in
    flight carry their weight.
    """

    overlap: int = knob(0, low=0, doc="steps after which a message is added; 0: in the same step")
    prefers: ClassVar[dict[str, str]] = {"topology": "one_peer_exponential"}

    def check(self, context: MixingContext) -> None:
        context.mixing().must_be(self.name, "column")

    def begin(self, context: MixingContext) -> State:
        x = copies(context.parameters)
        kind = torch.promote_types(x[0].dtype, torch.float32)
        return keep("x", x) | {"w": torch.ones((), dtype=kind, device=x[0].device)}

    @torch.no_grad()
    def after_step(self, context: MixingContext, state: State) -> Communication[State]:
        matrix = context.mixing().at(context.step)
        sent_share = 1 - float(matrix[context.group.rank, context.group.rank])
        mine = self._moved(context, state)
        kept_back = [x - sent_share * sent for x, sent in zip(mine, context.as_received(mine), strict=True)]
        context.start(str(context.step), context.neighbour_sum(mine, matrix))
        due = str(context.step - self.overlap)
        if context.is_in_flight(due):
            received = yield from context.wait_for(due)
            kept_back = [x + y for x, y in zip(kept_back, received, strict=True)]
        return self._hold(context, kept_back)

    @staticmethod
    def _moved(context: MixingContext, state: State) -> list[Tensor]:
        """Return x − u and w, where u is the optimizer's update of z."""
        x, w = kept(state, "x", range(len(context.parameters))), state["w"]
        return [*(x + (p.detach() - x / w) for x, p in zip(x, context.parameters, strict=True)), w]

    @staticmethod
    def _hold(context: MixingContext, mine: list[Tensor]) -> State:
        *x, w = mine
        copy_into(context.parameters, [x / w for x in x])
        return keep("x", x) | {"w": w}

    @torch.no_grad()
    def leave(self, context: MixingContext, state: State) -> Communication[None]:
        """Receive all messages in flight; the mean of x is the mean of the models, since the N weights sum to N."""
        *x, _ = self._moved(context, state)
        for step in range(context.step - self.overlap, context.step):
            if context.is_in_flight(str(step)):
                *received, _ = yield from context.wait_for(str(step))
                x = [a + b for a, b in zip(x, received, strict=True)]
        copy_into(context.parameters, x)
        yield from super().leave(context, state)

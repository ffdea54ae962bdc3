"""Stochastic gradient push: gossip over directed graphs, without waiting for an answer."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State, SyncContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensors import copies, copy_into, keep, kept


@technique(
    "sgp",
    aliases=["stochastic_gradient_push", "push_sum"],
    paper="Assran, Loizou, Ballas, Rabbat, ICML 2019, arXiv 1811.10792",
)
@dataclass(frozen=True)
class SGP(Gossiping):
    """Push-sum: a worker gives shares of (x, w) away and keeps the rest; the model it trains is z = x/w.

    w, which begins as 1, travels with x and undoes the bias of graphs where some are heard more than others. With
    `overlap` nobody waits for a message before that many steps have passed; it is then counted, in that step and not
    sooner if it came sooner, so that a run does not depend on its timing. Nothing is lost on the way: what is under
    way carries its weight.
    """

    overlap: int = knob(0, low=0, doc="steps after which what was sent is counted; 0: in the same step")
    prefers: ClassVar[dict[str, str]] = {"topology": "one_peer_exponential"}

    def check(self, context: SyncContext) -> None:
        context.mixing().must_be(self.name, "column")

    def begin(self, context: SyncContext) -> State:
        x = copies(context.parameters)
        kind = torch.promote_types(x[0].dtype, torch.float32)
        return keep("x", x) | {"w": torch.ones((), dtype=kind, device=x[0].device)}

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        matrix = context.mixing().at(context.step)
        away = 1 - float(matrix[context.group.rank, context.group.rank])
        mine = self._moved(context, state)
        kept_back = [x - away * said for x, said in zip(mine, context.said(mine), strict=True)]
        context.start(str(context.step), context.hear(mine, matrix))
        due = str(context.step - self.overlap)
        if context.is_in_flight(due):
            heard = yield from context.arrive(due)
            kept_back = [x + y for x, y in zip(kept_back, heard, strict=True)]
        return self._hold(context, kept_back)

    @staticmethod
    def _moved(context: SyncContext, state: State) -> list[Tensor]:
        """(x − u, w), after what the optimizer did to z."""
        x, w = kept(state, "x", range(len(context.parameters))), state["w"]
        return [*(x + (p.detach() - x / w) for x, p in zip(x, context.parameters, strict=True)), w]

    @staticmethod
    def _hold(context: SyncContext, mine: list[Tensor]) -> State:
        *x, w = mine
        copy_into(context.parameters, [x / w for x in x])
        return keep("x", x) | {"w": w}

    @torch.no_grad()
    def leave(self, context: SyncContext, state: State) -> Generator[Any, Any, None]:
        """All that is under way arrives; the mean of x is the mean of the models, since the weights sum to N."""
        *x, w = self._moved(context, state)
        for step in range(context.step - self.overlap, context.step):
            if context.is_in_flight(str(step)):
                *heard, weight = yield from context.arrive(str(step))
                x, w = [a + b for a, b in zip(x, heard, strict=True)], w + weight
        copy_into(context.parameters, x)
        yield from super().leave(context, state)

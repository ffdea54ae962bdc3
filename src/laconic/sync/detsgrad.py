"""Event-triggered gossip: a worker speaks when it has moved far enough from what it last said."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State, SyncContext, Talk
from laconic.sync.gossip import Gossiping
from laconic.sync.tensors import copies, copy_into, keep, kept


@technique("detsgrad", paper="George and Gurram, AAAI 2020, arXiv 1909.05020")
@dataclass(frozen=True)
class DETSGRAD(Gossiping):
    """Everybody remembers what its neighbours last said, and speaks only when it has moved more than v_k since.

    w_i = w_i − beta_k·(sum over j of W_ij·(said_i − said_j)) − a_k·u_i, with a_k = (decay·k + 1)^−rate_exponent on top
    of the optimizer's own rate and beta_k = gain·(decay·k + 1)^−gain_exponent; v_k = threshold·(number of
    parameters)·rate·a_k. Readings chosen: the trigger's norm is the sum of absolute values over all parameters of the
    sentence, and the paper's v_0 counts parameters. Silence is told by one byte per neighbour and step.
    """

    threshold: float = knob(0.02, low=0, doc="how far it may go unsaid, per parameter and unit of rate; 0: says all")
    gain: float = knob(0.25, above=0, doc="of the pull towards neighbours: what was last said pulls in every step")
    decay: float = knob(1e-3, low=0, doc="per step, of gain and rate")
    gain_exponent: float = knob(0.1, low=0, doc="how fast the gain falls: slower than the rate, so that all agree")
    rate_exponent: float = knob(1.0, low=0, doc="how fast the rate falls")

    def check(self, context: SyncContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def begin(self, context: SyncContext) -> State:
        state = keep("x", copies(context.parameters)) | keep("said", copies(context.parameters))
        for j in self._neighbours(context):
            state |= keep(f"heard.{j}", copies(context.parameters))
        return state | {"broadcasts": torch.zeros((), dtype=torch.int64)}

    @staticmethod
    def _neighbours(context: SyncContext) -> list[int]:
        row = context.mixing().at(0)[context.group.rank]
        return [j for j in np.flatnonzero(row).tolist() if j != context.group.rank]

    def faded(self, step: int) -> float:
        """What multiplies the optimizer's rate in a step."""
        return float((self.decay * step + 1) ** -self.rate_exponent)

    def may_go_unsaid(self, context: SyncContext, step: int) -> float:
        """v_k: the distance from what was last said at which a worker speaks."""
        elements = sum(p.numel() for p in context.parameters)
        return self.threshold * elements * context.rate * self.faded(step)

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        everything, step = range(len(context.parameters)), context.step
        before, said = kept(state, "x", everything), kept(state, "said", everything)
        beta = self.gain * (self.decay * step + 1) ** -self.gain_exponent
        moved = [x + self.faded(step) * (p - x) for p, x in zip(context.parameters, before, strict=True)]
        row = context.mixing().at(0)[context.group.rank]
        for j in self._neighbours(context):
            for x, own, other in zip(moved, said, kept(state, f"heard.{j}", everything), strict=True):
                x.sub_(own - other, alpha=beta * float(row[j]))
        copy_into(context.parameters, moved)
        silent = _distance(said, moved) <= self.may_go_unsaid(context, step + 1)
        heard = yield from self._broadcast(context, [] if silent else moved)
        state = state | keep("x", moved)
        if not silent:
            state |= keep("said", [x.clone() for x in context.said(moved)])
            state["broadcasts"] = state["broadcasts"] + 1
        for j, model in heard.items():
            state |= keep(f"heard.{j}", model)
        return state

    def _broadcast(self, context: SyncContext, model: list[Tensor]) -> Talk:
        """Say to all neighbours whether there is something to hear, and then that; returns the models heard."""
        neighbours = self._neighbours(context)
        speaks = [torch.tensor([len(model) > 0], dtype=torch.uint8, device=context.parameters[0].device)]
        flags = yield from context.swap(dict.fromkeys(neighbours, speaks), dict.fromkeys(neighbours, speaks), 1.0)
        speaking = [j for j, (flag,) in flags.items() if bool(flag)]
        told = dict.fromkeys(neighbours, model) if model else {}
        return (yield from context.swap(told, dict.fromkeys(speaking, copies(context.parameters))))


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum(((x - y).abs().sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)), torch.zeros(())))

"""Event-triggered gossip: a worker sends its model when it has moved far enough from what it last sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import PointToPointContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import Communication


@technique("detsgrad", paper="George and Gurram, AAAI 2020, arXiv 1909.05020")
@dataclass(frozen=True)
class DETSGRAD(Gossiping[PointToPointContext]):
    """Gossip with the models neighbours last sent; send one's own only after it has moved by more than v_k.

    s_i is the model w_i that worker i last sent, u_i its optimizer's update, W the mixing weights and k the step: w_i =
    w_i − beta_k·(sum over j of W_ij·(s_i − s_j)) − a_k·u_i, with a_k = (decay·k + 1)^−rate_exponent on top of the
    optimizer's own rate and beta_k = gain·(decay·k + 1)^−gain_exponent; v_k = threshold·(number of
    parameters)·rate·a_k. Readings chosen: the trigger's norm is the sum of absolute values over all parameters of the
    sentence, and the paper's v_0 counts parameters. A flag of one byte per neighbour and step says whether a model
    follows.
    """

    threshold: float = knob(
        0.02, low=0, doc="distance that is not sent, per parameter and unit of rate; 0: all is sent"
    )
    gain: float = knob(0.25, above=0, doc="strength of the pull towards neighbours' last models, in every step")
    decay: float = knob(1e-3, low=0, doc="decay of gain and rate per step")
    gain_exponent: float = knob(0.1, low=0, doc="how fast the gain falls: slower than the rate, so that workers agree")
    rate_exponent: float = knob(1.0, low=0, doc="how fast the rate falls")

    def check(self, context: PointToPointContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def begin(self, context: PointToPointContext) -> State:
        state = keep("x", copies(context.parameters)) | keep("said", copies(context.parameters))
        for j in self._neighbours(context):
            state |= keep(f"heard.{j}", copies(context.parameters))
        return state | {"broadcasts": torch.zeros((), dtype=torch.int64)}

    @staticmethod
    def _neighbours(context: PointToPointContext) -> list[int]:
        row = context.mixing().at(0)[context.group.rank]
        return [j for j in np.flatnonzero(row).tolist() if j != context.group.rank]

    def rate_factor(self, step: int) -> float:
        """Return a_k, the factor on the optimizer's learning rate in a step."""
        return float((self.decay * step + 1) ** -self.rate_exponent)

    def send_threshold(self, context: PointToPointContext, step: int) -> float:
        """Return v_k, the distance from the model last sent above which a worker sends its model."""
        elements = sum(p.numel() for p in context.parameters)
        return self.threshold * elements * context.rate * self.rate_factor(step)

    @torch.no_grad()
    def after_step(self, context: PointToPointContext, state: State) -> Communication[State]:
        everything, step = range(len(context.parameters)), context.step
        before, sent = kept(state, "x", everything), kept(state, "said", everything)
        beta = self.gain * (self.decay * step + 1) ** -self.gain_exponent
        moved = [x + self.rate_factor(step) * (p - x) for p, x in zip(context.parameters, before, strict=True)]
        row = context.mixing().at(0)[context.group.rank]
        for j in self._neighbours(context):
            for x, own, other in zip(moved, sent, kept(state, f"heard.{j}", everything), strict=True):
                x.sub_(own - other, alpha=beta * float(row[j]))
        copy_into(context.parameters, moved)
        silent = _distance(sent, moved) <= self.send_threshold(context, step + 1)
        received = yield from self._broadcast(context, [] if silent else moved)
        state = state | keep("x", moved)
        if not silent:
            state |= keep("said", [x.clone() for x in context.as_received(moved)])
            state["broadcasts"] = state["broadcasts"] + 1
        for j, model in received.items():
            state |= keep(f"heard.{j}", model)
        return state

    def _broadcast(self, context: PointToPointContext, model: list[Tensor]) -> Communication[Any]:
        """Tell all neighbours whether a model follows, send it if so, and return the models received."""
        neighbours = self._neighbours(context)
        sends = [torch.tensor([len(model) > 0], dtype=torch.uint8, device=context.parameters[0].device)]
        flags = yield from context.swap(dict.fromkeys(neighbours, sends), dict.fromkeys(neighbours, sends), 1.0)
        senders = [j for j, (flag,) in flags.items() if bool(flag)]
        outgoing = dict.fromkeys(neighbours, model) if model else {}
        return (yield from context.swap(outgoing, dict.fromkeys(senders, copies(context.parameters))))


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum(((x - y).abs().sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)), torch.zeros(())))

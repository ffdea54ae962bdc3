"""Cooperative SGD: local steps, then one multiplication by a mixing matrix, of which many rules are special cases."""

from __future__ import annotations

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


@technique("cooperative_sgd", aliases=["cooperative"], paper="Wang and Joshi, JMLR 22, 2021")
@dataclass(frozen=True)
class CooperativeSGD(Gossiping[PointToPointContext]):
    """A(tau, W, v): after every `period` local steps, multiply all models by the topology's mixing matrix W.

    tau is the period, and v = `auxiliary` is the number of additional models that nobody trains: they are the
    topology's first nodes, and the first workers hold them. So `cooperative_sgd(1) / complete` is bulk synchronous SGD
    on models, a longer period local SGD, a sparse graph decentralised SGD, and `cooperative_sgd(4, auxiliary=1) / star`
    elastic averaging around the hub.
    """

    period: int = knob(1, low=1, gentler="less", doc="local steps between exchanges")
    auxiliary: int = knob(0, low=0, doc="additional models that are mixed and not trained")

    def check(self, context: PointToPointContext) -> None:
        context.mixing(self.auxiliary + context.group.size).must_be(self.name, "doubly", "symmetric")

    def begin(self, context: PointToPointContext) -> State:
        hosted = self._hosted(context, context.group.rank)[1:]
        return {
            name: tensor for node in hosted for name, tensor in keep(f"node.{node}", copies(context.parameters)).items()
        }

    def _hosted(self, context: PointToPointContext, rank: int) -> list[int]:
        """Return the nodes that a worker holds: its own, and its share of the auxiliary ones."""
        return [self.auxiliary + rank, *range(rank, self.auxiliary, context.group.size)]

    @torch.no_grad()
    def after_step(self, context: PointToPointContext, state: State) -> Communication[State]:
        if (context.step + 1) % self.period:
            return state
        matrix = context.mixing(self.auxiliary + context.group.size).at(context.step // self.period)
        rank, everything = context.group.rank, range(len(context.parameters))
        mine = self._hosted(context, rank)
        own = {mine[0]: copies(context.parameters)} | {
            node: kept(state, f"node.{node}", everything) for node in mine[1:]
        }
        received: dict[int, list[Tensor]] = {node: context.as_received(model) for node, model in own.items()}
        outgoing, incoming, nodes = {}, {}, {}
        for peer in (r for r in range(context.group.size) if r != rank):
            theirs = self._hosted(context, peer)
            if wanted := [node for node in mine if np.any(matrix[theirs, node])]:
                outgoing[peer] = [x for node in wanted for x in own[node]]
            if expected := [node for node in theirs if np.any(matrix[mine, node])]:
                nodes[peer], incoming[peer] = expected, [x for _ in expected for x in own[mine[0]]]
        for peer, tensors in (yield from context.swap(outgoing, incoming)).items():
            count = len(everything)
            received |= {node: tensors[k * count : (k + 1) * count] for k, node in enumerate(nodes[peer])}
        mixed = {node: _mixed(node, own[node], received, matrix[node]) for node in mine}
        copy_into(context.parameters, mixed[mine[0]])
        return {name: x for node in mine[1:] for name, x in keep(f"node.{node}", mixed[node]).items()}


def _mixed(node: int, own: list[Tensor], received: dict[int, list[Tensor]], row: np.ndarray[Any, Any]) -> list[Tensor]:
    """Return a node's model plus a share of every difference, which keeps the sum of models in spite of rounding."""
    out = [x.clone() for x in own]
    for other in (j for j in np.flatnonzero(row).tolist() if j != node):
        for x, theirs, mine in zip(out, received[other], received[node], strict=True):
            x.add_(theirs - mine, alpha=float(row[other]))
    return out

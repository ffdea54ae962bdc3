"""CHOCO-SGD: gossip with any compression, by public copies of the models that neighbours keep in agreement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import PointToPointContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import Communication


@technique(
    "choco_sgd",
    aliases=["choco", "chocosgd"],
    paper="Koloskova, Stich, Jaggi, ICML 2019; Koloskova, Lin, Stich, Jaggi, ICLR 2020",
)
@dataclass(frozen=True)
class ChocoSGD(Gossiping[PointToPointContext]):
    """Step, then send the compressed difference of the model from its public copy: choco_sgd / topk(0.1).

    Worker i's public copy x̂_i moves by what i sent, s_i = ΣW_ij·x̂_j (W: the mixing weights) by what its neighbours
    sent, and the model x_i by `gamma`·(s_i − x̂_i) towards them; the mean of all models is moved by the updates alone.
    What was not sent stays in x_i − x̂_i, so that no error memory is needed. Reading chosen: copies begin as the common
    model, not as zeros. Harsher compression needs a smaller gamma.
    """

    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    gamma: float = knob(0.2, above=0, high=1, doc="step size towards the neighbours' copies")

    def check(self, context: PointToPointContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")
        context.encode(copies(context.parameters))  # refuses a compression that no neighbour could decode

    def begin(self, context: PointToPointContext) -> State:
        return keep("copy", copies(context.parameters)) | keep("sum", copies(context.parameters))

    @torch.no_grad()
    def after_step(self, context: PointToPointContext, state: State) -> Communication[State]:
        everything, rank = range(len(context.parameters)), context.group.rank
        mine, sums = (copies(kept(state, name, everything)) for name in ("copy", "sum"))
        row = context.mixing().at(0)[rank]
        payloads = context.encode([x - c for x, c in zip(context.parameters, mine, strict=True)])
        neighbours = [j for j in np.flatnonzero(row).tolist() if j != rank]
        received = yield from context.swap(dict.fromkeys(neighbours, payloads), dict.fromkeys(neighbours, payloads))
        own = context.decode(payloads)
        for changes, weight in [(own, row[rank]), *((context.decode(received[j]), row[j]) for j in neighbours)]:
            for total, change in zip(sums, changes, strict=True):
                total.add_(change, alpha=float(weight))
        for copy, change in zip(mine, own, strict=True):
            copy.add_(change)
        models = [x + self.gamma * (s - c) for x, s, c in zip(context.parameters, sums, mine, strict=True)]
        copy_into(context.parameters, models)
        return keep("copy", mine) | keep("sum", sums)

    @staticmethod
    def consensus_step(contraction: float, gap: float, distance: float) -> float:
        """Return the theory's gamma from the compressor's contraction δ, the spectral gap 1 − |λ₂|, and |I − W|."""
        rho, d, b = gap, contraction, distance
        return rho**2 * d / (16 * rho + rho**2 + 4 * b**2 + 2 * rho * b**2 - 8 * rho * d)

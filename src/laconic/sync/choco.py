"""CHOCO-SGD: gossip in any compression, by public copies that neighbours agree upon."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from laconic.registry import knob, technique
from laconic.sync.base import State, SyncContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensors import copies, copy_into, keep, kept


@technique(
    "choco_sgd",
    aliases=["choco", "chocosgd"],
    paper="Koloskova, Stich, Jaggi, ICML 2019; Koloskova, Lin, Stich, Jaggi, ICLR 2020",
)
@dataclass(frozen=True)
class ChocoSGD(Gossiping):
    """A step of one's own, then how far the model is from its public copy is said, in any codec: choco_sgd / topk(0.1).

    x̂_i moves by what i said, s_i = ΣW_ij·x̂_j by what neighbours did, and x_i goes `gamma`·(s_i − x̂_i) towards them; the
    mean of all models is moved by the updates alone. What was not said stays in x_i − x̂_i, so that no other memory is
    wanted. Reading chosen: copies begin as the model all have, not as zeros. Harsher compression wants a smaller gamma.
    """

    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    gamma: float = knob(0.2, above=0, high=1, doc="how far a model goes towards its neighbours' copies")

    def check(self, context: SyncContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")
        context.written(copies(context.parameters))  # which refuses what no neighbour could read

    def begin(self, context: SyncContext) -> State:
        return keep("copy", copies(context.parameters)) | keep("sum", copies(context.parameters))

    @torch.no_grad()
    def after_step(self, context: SyncContext, state: State) -> Generator[Any, Any, State]:
        everything, rank = range(len(context.parameters)), context.group.rank
        mine, sums = (copies(kept(state, name, everything)) for name in ("copy", "sum"))
        row = context.mixing().at(0)[rank]
        told = context.written([x - c for x, c in zip(context.parameters, mine, strict=True)])
        neighbours = [j for j in np.flatnonzero(row).tolist() if j != rank]
        heard = yield from context.swap(dict.fromkeys(neighbours, told), dict.fromkeys(neighbours, told))
        own = context.read(told)
        for said, weight in [(own, row[rank]), *((context.read(heard[j]), row[j]) for j in neighbours)]:
            for total, change in zip(sums, said, strict=True):
                total.add_(change, alpha=float(weight))
        for copy, change in zip(mine, own, strict=True):
            copy.add_(change)
        models = [x + self.gamma * (s - c) for x, s, c in zip(context.parameters, sums, mine, strict=True)]
        copy_into(context.parameters, models)
        return keep("copy", mine) | keep("sum", sums)

    @staticmethod
    def consensus_step(contraction: float, gap: float, distance: float) -> float:
        """The gamma of the theory: δ of the compressor, 1 − |λ₂| and |I − W| of the mixing."""
        rho, d, b = gap, contraction, distance
        return rho**2 * d / (16 * rho + rho**2 + 4 * b**2 + 2 * rho * b**2 - 8 * rho * d)

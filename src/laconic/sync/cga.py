"""Cross-gradient aggregation (CGA): steps along which no neighbour's loss rises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import PointToPointContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.worker import Communication


def projected(own: Tensor, others: Tensor, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the direction own + sum of v_j·others_j of the least norm with every v_j at least `margin`, and v.

    With margin 0 it is the vector nearest to `own` that has no negative product with any row of `others`, and `own`
    itself where that has none. The problem is solved in its dual, which has as many unknowns as there are rows.
    """
    from scipy.optimize import nnls

    rows, one = others.double(), own.double()
    start = one + margin * rows.sum(dim=0)
    values, vectors = np.linalg.eigh((rows @ rows.T).cpu().numpy())
    root = np.sqrt(np.maximum(values, 0) + 1e-12 * max(values.max(), 1e-300))  # rows may depend on each other
    target = -(vectors.T @ (rows @ start).cpu().numpy()) / root
    above, _ = nnls(root[:, None] * vectors.T, target)
    dual = torch.from_numpy(above).to(one) + margin
    return (one + dual @ rows).to(own.dtype), dual


@technique(
    "cga",
    aliases=["cross_gradient_aggregation"],
    paper="Esfandiari et al., ICML 2021, arXiv 2103.02051",
    evidence="fixture",
    reproduces="cga.npz, recorded from the authors' program: dual and direction of `cga`, with and without a "
    "margin, weighted",
)
@dataclass(frozen=True)
class CGA(Gossiping[PointToPointContext]):
    """For neighbours whose data differ: each evaluates the others' models on its own data, and a worker steps in the
    direction nearest to its own gradient that is in conflict with none of these cross-gradients.

    An update takes as many of the script's steps as the busiest worker has neighbours, and one more: in the first a
    worker's gradient is that of its own model; then models are exchanged, and each further step computes the gradient
    of a neighbour's model on this worker's next batch. (Workers with fewer neighbours average their own gradient over
    the steps left.) The cross-gradients go back, and x_i = (sum over j of W_ij·x_j) − u_i, where u_i is the optimizer's
    update, momentum included, for the projected gradient. Until an update is complete the model in training is a
    neighbour's: call `laconic.finish` before evaluating. A compression is one of the cross-gradients, with a memory of
    what was not sent to each neighbour: `cga / scaled_sign` is CompCGA; models are sent whole.

    Readings chosen: cross-gradients are weighted by W_ij/W_ii, so that a `margin` of 0.5, with which every neighbour
    always counts, is the authors' program up to the factor W_ii on the learning rate; the projection is of the whole
    model, where that program projects layer by layer; a neighbour's batch is its next one, where theirs is that of its
    own gradient.
    """

    margin: float = knob(0.5, low=0, doc="least weight of a neighbour's gradient; 0: only conflicts are removed")
    replaces_step: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def check(self, context: PointToPointContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")
        context.encode(copies(context.parameters))  # refuses a compression that no neighbour could decode

    @staticmethod
    def neighbours(context: PointToPointContext) -> list[int]:
        """Return this worker's neighbours, in order."""
        row = context.mixing().at(0)[context.group.rank]
        return [j for j in np.flatnonzero(row).tolist() if j != context.group.rank]

    def begin(self, context: PointToPointContext) -> State:
        zeros = [torch.zeros_like(p) for p in context.parameters]
        state = {"passes": torch.zeros((), dtype=torch.int64)}
        state |= keep("x", copies(context.parameters)) | keep("gradient", copies(zeros))
        for j in self.neighbours(context):
            state |= keep(f"model.{j}", copies(zeros)) | keep(f"unsent.{j}", copies(zeros))
        return state

    @torch.no_grad()
    def stepping(self, context: PointToPointContext, state: State) -> Communication[State]:
        everything, neighbours, passes = range(len(context.parameters)), self.neighbours(context), int(state["passes"])
        length = 1 + context.mixing().neighbours
        own_passes = length - len(neighbours)
        if passes < own_passes:
            if passes == 0:
                state |= keep("x", copies(context.parameters)) | keep("gradient", copies(context.gradients))
            else:
                _add(kept(state, "gradient", everything), context.gradients)
        else:
            _add(kept(state, f"unsent.{neighbours[passes - own_passes]}", everything), context.gradients)
        passes += 1
        if passes == own_passes:
            own = kept(state, "x", everything)
            received = yield from context.swap(dict.fromkeys(neighbours, own), dict.fromkeys(neighbours, own))
            for j, model in received.items():
                state |= keep(f"model.{j}", model)
        if passes < length:
            if passes >= own_passes:
                copy_into(context.parameters, kept(state, f"model.{neighbours[passes - own_passes]}", everything))
            return state | {"passes": torch.tensor(passes)}
        yield from self._update(context, state, own_passes)
        return state | {"passes": torch.tensor(0)}

    def _update(self, context: PointToPointContext, state: State, own_passes: int) -> Communication[None]:
        """Send the cross-gradients back, and step on the projection of this worker's own gradient."""
        everything, neighbours = range(len(context.parameters)), self.neighbours(context)
        row = context.mixing().at(0)[context.group.rank]
        weights = [float(row[j] / row[context.group.rank]) for j in neighbours]
        payloads = {j: context.encode(kept(state, f"unsent.{j}", everything)) for j in neighbours}
        for j, payload in payloads.items():
            _add(kept(state, f"unsent.{j}", everything), context.decode(payload), -1.0)
        received = yield from context.swap(payloads, payloads)
        own, x = [g / own_passes for g in kept(state, "gradient", everything)], kept(state, "x", everything)
        flat = torch.cat([g.flatten() for g in own])
        if neighbours:
            crosses = [torch.cat([g.flatten() for g in context.decode(received[j])]) for j in neighbours]
            rows = torch.stack([weight * cross for weight, cross in zip(weights, crosses, strict=True)])
            flat, dual = projected(flat, rows, self.margin)
            context.note(conflicts=float((dual > self.margin + 1e-9).sum()))
        for p, before, part, g in zip(context.parameters, x, flat.split([g.numel() for g in own]), own, strict=True):
            p.copy_(before)
            p.grad = part.view_as(g)
        context.apply()
        for k, (p, before) in enumerate(zip(context.parameters, x, strict=True)):
            mixed = float(row[context.group.rank]) * before
            for j in neighbours:
                mixed.add_(state[f"model.{j}.{k}"], alpha=float(row[j]))
            p.copy_(mixed + (p - before))

    def leave(self, context: PointToPointContext, state: State) -> Communication[None]:
        """Drop the update that is not complete: each worker's own model counts."""
        if int(state["passes"]):
            copy_into(context.parameters, kept(state, "x", range(len(context.parameters))))
        yield from super().leave(context, state)


def _add(totals: list[Tensor], tensors: list[Tensor], factor: float = 1.0) -> None:
    for total, tensor in zip(totals, tensors, strict=True):
        total.add_(tensor, alpha=factor)

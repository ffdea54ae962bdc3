"""YOGA: pull some layers from some peers, those that differ most, within a budget of traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import PointToPointContext, SteeringContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, keep, kept
from laconic.topology.max_match import Pull, max_match
from laconic.topology.mixing import Matrix, adjacency
from laconic.worker import Communication

Array = NDArray[np.float64]
_SKETCH = 16  # numbers by which workers compare a layer


class PullContext(PointToPointContext, SteeringContext, Protocol):
    """Messages to single neighbours, and what the script logs."""


def layers_of(names: Sequence[str]) -> list[list[int]]:
    """Return the parameters of each layer: those that one module holds, such as a weight and its bias."""
    layers: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        layers.setdefault(name.rpartition(".")[0], []).append(index)
    return list(layers.values())


def pull_scores(speeds: Array, sketches: Array, labels: Array, rates: Matrix) -> Array:
    """Return how much each layer of each peer is worth to each worker, between 0 and 1.

    - `speeds`: by worker and layer, how far the layer has moved since the last round, relative to its norm.
    - `sketches`: by worker and layer, a few numbers that are about as far apart as the layers are.
    - `labels`: by worker, how many samples of each class it has; without classes all are alike.
    - `rates`: bits per second between workers.
    """
    apart = np.linalg.norm(sketches[:, None] - sketches[None], axis=-1)
    shares = labels / np.maximum(labels.sum(axis=1, keepdims=True), 1)
    unlike = np.abs(shares[:, None] - shares[None]).sum(axis=-1) / 2
    layer = (_relative(speeds)[None] + _relative(apart)) / 2
    peer = (unlike + _relative(rates)) / 2
    return np.asarray(layer * peer[:, :, None])


def _relative(values: Array) -> Array:
    """Return values of at least 0 as shares of the largest."""
    return values / max(float(values.max()), 1e-300)


@technique("yoga", paper="Liu et al., IEEE/ACM Transactions on Networking 32(2), 2023")
@dataclass(frozen=True)
class YOGA(Gossiping[PullContext]):
    """Every `period` steps, pull those layers of those peers that promise most, within a budget of traffic, and average
    them with this worker's own; layers that nobody sends stay as they are.

    Layers that still learn fast and differ much between two workers come first, and peers whose classes differ from
    this worker's and that have fast links. Statistics of a few numbers are gathered from all workers, so that each
    finds the same plan: `max_match` takes the pairs of a layer and a peer in descending order of their scores, as long
    as they fit into what is left of the budgets of receiver and sender, which are `budget` models each in a round. The
    statistics are counted as control, beside the budget. Rates between workers are measured once, before the first
    round. With a budget for all models on a complete graph this is averaging with everybody.

    A rule does not see labels. With `classes=10` the script tells how many samples of each class its worker has, once
    after `distribute`, with `laconic.log(label_0=…, label_1=…, …, label_9=…)`; without classes, peers differ by their
    links alone.

    Readings chosen, since only the paper's abstract is known: a layer is what one module holds; its learning speed is
    how far it has moved at the peer since the last round, over its norm; divergence is the distance of two workers'
    layers, which each estimates from sketches of 16 numbers; the dissimilarity of classes is the total variation
    distance. Each is divided by its largest value, and a score is the mean of speed and divergence, times that of
    dissimilarity and rate. Pulled copies and the own layer have equal weights.
    """

    budget: float = knob(1.0, above=0, gentler="more", doc="models that a worker may receive, and send, in a round")
    period: int = knob(8, low=1, gentler="less", doc="local steps of a round")
    classes: int = knob(0, low=0, doc="classes whose numbers of samples the script logs as label_0, label_1, …")
    races: ClassVar[bool] = True  # real rates differ from run to run, and with them the pulls
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}
    prefers: ClassVar[Mapping[str, str]] = {"topology": "complete"}
    copies: ClassVar[int] = 1

    def check(self, context: PullContext) -> None:
        context.mixing().must_be(self.name, "doubly", "symmetric", "static")

    def begin(self, context: PullContext) -> State:
        rates = torch.zeros(context.group.size, context.group.size, dtype=torch.float64)
        return keep("x", copies(context.parameters)) | {"rates": rates}

    @torch.no_grad()
    def after_step(self, context: PullContext, state: State) -> Communication[State]:
        if (context.step + 1) % self.period or context.group.size == 1:
            return state
        rates = state["rates"]
        if not rates.any():
            measured = yield from context.group.measure(context.parameters[0].device)
            rates = torch.from_numpy(np.nan_to_num(measured.probe.bits_per_second, posinf=0.0).copy())
        pulls = yield from self._plan(context, state, rates.numpy())
        layers, rank, x = layers_of(context.names), context.group.rank, copies(context.parameters)

        def tensors(receiver: int, peer: int) -> list[Tensor]:
            return [x[k] for p in pulls if (p.receiver, p.peer) == (receiver, peer) for k in layers[p.layer]]

        outgoing = {p.receiver: tensors(p.receiver, rank) for p in pulls if p.peer == rank}
        incoming = {p.peer: tensors(rank, p.peer) for p in pulls if p.receiver == rank}
        arriving = yield from context.swap(outgoing, incoming)
        received: dict[int, list[Tensor]] = {}
        for peer, theirs in arriving.items():
            places = [k for p in pulls if (p.receiver, p.peer) == (rank, peer) for k in layers[p.layer]]
            for k, copy in zip(places, theirs, strict=True):
                received.setdefault(k, []).append(copy)
        for k, copied in received.items():
            context.parameters[k].copy_(torch.stack([x[k], *copied]).mean(dim=0))
        context.note(pulled_layers=float(sum(p.receiver == rank for p in pulls)))
        return keep("x", copies(context.parameters)) | {"rates": rates}

    def _plan(self, context: PullContext, state: State, rates: Matrix) -> Communication[list[Pull]]:
        """Gather everybody's statistics, and return what everybody pulls."""
        layers = layers_of(context.names)
        own = torch.cat([self._speeds(context, state, layers), self._sketches(context, layers), self._labels(context)])
        (gathered,) = yield [context.group.all_gather(own.to(context.parameters[0].device), control=1.0)]
        size, count = context.group.size, len(layers)
        numbers = gathered.double().cpu().numpy().reshape(size, -1)
        speeds, sketches, labels = np.split(numbers, [count, count + count * _SKETCH], axis=1)
        scores = pull_scores(speeds, sketches.reshape(size, count, _SKETCH), labels, rates)
        scores[~adjacency(size, context.mixing().edges)] = -np.inf
        layer_bytes = [sum(context.parameters[k].nbytes for k in layer) for layer in layers]
        most = [self.budget * sum(layer_bytes)] * size
        return max_match(scores, layer_bytes, most, most)

    @staticmethod
    def _speeds(context: PullContext, state: State, layers: Sequence[Sequence[int]]) -> Tensor:
        before = kept(state, "x", range(len(context.parameters)))
        found = []
        for layer in layers:
            moved = sum((context.parameters[k] - before[k]).double().square().sum() for k in layer)
            norm = sum(context.parameters[k].double().square().sum() for k in layer)
            found.append(torch.as_tensor(moved / torch.clamp(torch.as_tensor(norm), min=1e-30)).sqrt())
        return torch.stack(found).float().cpu()

    @staticmethod
    def _sketches(context: PullContext, layers: Sequence[Sequence[int]]) -> Tensor:
        """Return sums of the entries of each layer, in random groups and with random signs, which all workers draw
        alike: squared distances of such sums are right in the mean."""
        lengths = [sum(context.parameters[k].numel() for k in layer) for layer in layers]
        draw = torch.Generator().manual_seed((context.seed + context.step) % 2**63)
        groups = torch.randint(2 * _SKETCH, (sum(lengths),), generator=draw)
        found = []
        for layer, (a, b) in zip(layers, pairwise(np.cumsum([0, *lengths]).tolist()), strict=True):
            flat = torch.cat([context.parameters[k].flatten() for k in layer]).float().cpu()
            signed = torch.where(groups[a:b] < _SKETCH, flat, -flat)
            found.append(torch.zeros(_SKETCH).index_add_(0, groups[a:b] % _SKETCH, signed))
        return torch.cat(found)

    def _labels(self, context: PullContext) -> Tensor:
        counts = [context.logged(f"label_{c}") for c in range(self.classes)]
        if None in counts:
            raise StrategyError(
                f"{self.name}(classes={self.classes}) needs the number of samples of every class, and label_"
                f"{counts.index(None)} was not logged; call laconic.log(label_0=…, label_1=…, …) after distribute"
            )
        return torch.tensor(counts, dtype=torch.float32)

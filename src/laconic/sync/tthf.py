"""TT-HF: clusters of devices that agree among themselves, of which one device each reports to the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from laconic.errors import StrategyError
from laconic.registry import knob, technique
from laconic.sync.base import State
from laconic.sync.contexts import PointToPointContext
from laconic.sync.gossip import Gossiping
from laconic.sync.tensor_lists import copies, copy_into, keep, kept
from laconic.topology.mixing import Matrix
from laconic.worker import Communication

_SERVER = 0  # the member that plays the server


@dataclass(frozen=True)
class Cluster:
    """Devices that are joined by links of their own.

    - `members`: their ranks.
    - `matrix`: the weights with which a round of consensus mixes their models.
    - `contraction`: the largest factor on the distance to consensus in a round.
    - `diameter`: the number of links from any device to the one farthest from it.
    """

    members: range
    matrix: Matrix
    contraction: float
    diameter: int

    def neighbours(self, rank: int) -> list[int]:
        """Return the devices with a link to this one."""
        first = self.members[0]
        return [first + j for j in np.flatnonzero(self.matrix[rank - first]).tolist() if first + j != rank]


def consensus_rounds(error: float, wanted: float, contraction: float) -> int:
    """Return the rounds after which a consensus error of at most `error` is at most what is wanted, and none where it
    is so already. Nobody goes on when the error is as small as rounding makes it."""
    if error <= wanted:
        return 0
    if contraction < 1e-12:
        return 1
    return math.ceil(math.log(max(wanted / error, 1e-16)) / math.log(contraction))


@technique("tthf", aliases=["tt_hf"], paper="Lin et al., IEEE JSAC 39(12), 2021, arXiv 2103.10481")
@dataclass(frozen=True)
class TTHF(Gossiping[PointToPointContext]):
    """Step; let neighbours within a cluster agree as closely as the step was long; now and then let one device of each
    cluster send its model to the server, whose mean all go on from.

    Workers are divided into `clusters` of consecutive ranks, and the sentence's topology joins the devices of each.
    After a step with learning rate η a cluster makes as many rounds of consensus, z_i = (sum over neighbours j of
    V_ij·z_j), as are needed for every device to be within η·`phi` of the cluster's mean: ⌈log(η·phi/error)/log λ⌉,
    where λ is the contraction of V; that may be none. Every `period` steps a device of each cluster, drawn from the
    common seed, sends its model to the server, which member 0 plays, and all get the mean by the sizes of the clusters.
    So the server hears as many devices as there are clusters, and the rest of the traffic stays on the short links.
    With one cluster that agrees completely in every step (`complete`, and a small phi) this is `bsp` for plain SGD.

    Readings chosen: the error is bounded by √s·U plus what the last consensus left, where s is the size of the cluster
    and U the longest way that any of its models has gone since; devices find U by passing on one number along as many
    links as the cluster's diameter. The paper's U is a distance between models, which no device knows; this bound needs
    no estimate and holds for certain. The learning rate is the optimizer's (the paper's theory wants γ/(t + α)), and
    phi and the period are fixed: the paper's control of all of these, by estimates of the data's diversity and a model
    of energy and delay, is not here.
    """

    clusters: int = knob(2, low=1, doc="groups of consecutive workers with links among them")
    period: int = knob(20, low=1, gentler="less", doc="steps between reports to the server")
    phi: float = knob(1.0, above=0, gentler="less", doc="consensus error that is allowed, in learning rates")
    needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"compression": ("none",)}
    copies: ClassVar[int] = 1

    def check(self, context: PointToPointContext) -> None:
        if context.group.size < self.clusters:
            raise StrategyError(
                f"{self.name} has {self.clusters} clusters and {context.group.size} workers; write at most "
                f"clusters={context.group.size}"
            )
        self.cluster(context, context.group.rank)

    def grouping(self, size: int) -> list[range]:
        """Return the ranks of each cluster; their sizes differ by one at most."""
        ends = [size * k // self.clusters for k in range(self.clusters + 1)]
        return [range(a, b) for a, b in pairwise(ends)]

    def cluster(self, context: PointToPointContext, rank: int) -> Cluster:
        """Return the cluster of a worker."""
        members = next(part for part in self.grouping(context.group.size) if rank in part)
        mixing = context.mixing(len(members)).must_be(self.name, "doubly", "symmetric", "static")
        matrix, diameter = mixing.at(0), 0
        reached = np.eye(len(members))
        while not reached.all():
            reached, diameter = reached @ (matrix != 0), diameter + 1
        return Cluster(members, matrix, math.sqrt(mixing.rho), diameter)

    def sampled(self, size: int, seed: int, number: int) -> list[int]:
        """Return the device of each cluster that reports to the server in the interval of this number."""
        draw = np.random.default_rng((seed, number))
        return [int(draw.choice(members)) for members in self.grouping(size)]

    def begin(self, context: PointToPointContext) -> State:
        return keep("point", copies(context.parameters)) | {
            "error": torch.zeros((), dtype=torch.float64),
            "intervals": torch.zeros((), dtype=torch.int64),
        }

    @torch.no_grad()
    def after_step(self, context: PointToPointContext, state: State) -> Communication[State]:
        state = yield from self._agree(context, state)
        if (context.step + 1) % self.period == 0:
            state = yield from self._aggregate(context, state)
        return state

    def _agree(self, context: PointToPointContext, state: State) -> Communication[State]:
        """Make as many rounds of consensus as the cluster needs."""
        cluster, points = (
            self.cluster(context, context.group.rank),
            kept(state, "point", range(len(context.parameters))),
        )
        squares = [(p.detach() - x).double().square().sum() for p, x in zip(context.parameters, points, strict=True)]
        way = yield from self._farthest(context, cluster, torch.stack(squares).sum().sqrt().cpu())
        error = float(state["error"]) + math.sqrt(len(cluster.members)) * float(way)
        rounds = consensus_rounds(error, context.rate * self.phi, cluster.contraction)
        context.note(consensus_rounds=float(rounds))
        if rounds == 0:
            return state
        mixed, matrix = copies(context.parameters), np.eye(context.group.size)
        inside = slice(cluster.members[0], cluster.members[-1] + 1)
        matrix[inside, inside] = cluster.matrix
        for _ in range(rounds):
            mixed = yield from context.mix(mixed, matrix)
        copy_into(context.parameters, mixed)
        left = error * cluster.contraction**rounds
        return state | keep("point", copies(mixed)) | {"error": torch.tensor(left, dtype=torch.float64)}

    def _farthest(self, context: PointToPointContext, cluster: Cluster, way: Tensor) -> Communication[Tensor]:
        """Return the largest of the cluster's numbers, which neighbours pass on."""
        neighbours = cluster.neighbours(context.group.rank)
        for _ in range(cluster.diameter):
            sent = {j: [way] for j in neighbours}
            received = yield from context.swap(sent, sent, control=1.0)
            way = torch.stack([way, *(theirs[0] for theirs in received.values())]).max()
        return way

    def _aggregate(self, context: PointToPointContext, state: State) -> Communication[State]:
        """Replace all models by the mean of those that the sampled devices report, and buffers with them."""
        size, rank, number = context.group.size, context.group.rank, int(state["intervals"])
        sampled = self.sampled(size, context.seed, number)
        own = copies([*context.parameters, *context.buffers])
        up = {_SERVER: own} if rank in sampled and rank != _SERVER else {}
        senders = [device for device in sampled if device != _SERVER] if rank == _SERVER else []
        models = yield from context.swap(up, dict.fromkeys(senders, own))
        if rank == _SERVER:
            weights = [len(members) / size for members in self.grouping(size)]
            reported = [models.get(device, own) for device in sampled]
            own = [sum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*reported, strict=True)]
            yield from context.swap({other: own for other in range(size) if other != _SERVER}, {})
        else:
            own = (yield from context.swap({}, {_SERVER: own}))[_SERVER]
        copy_into([*context.parameters, *context.buffers], own)
        context.note(uplinks=float(len(sampled)))
        return self.begin(context) | {"intervals": torch.tensor(number + 1)}

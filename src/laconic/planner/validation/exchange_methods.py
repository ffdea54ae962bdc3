"""The seven ways to exchange gradients that the survey measured, as transfers over the lanes of a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from laconic.cost.cluster import RING, Cluster
from laconic.cost.iteration import Order, Transfer, period
from laconic.cost.lanes import Lane
from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.schedule.merging import DenseCosts, greedy
from laconic.values.layer_times import LayerTimes

PIECE_BYTES = 4_096_000  # of BytePS
PARTITION_BYTES, CREDIT_BYTES = 16_000_000, 64_000_000  # of ByteScheduler, as it was run: 4 and 16 million parameters
CYCLE_SECONDS = 5e-3  # of Horovod before 0.21: what is ready is agreed upon once a cycle

Tasks = tuple[LayerTimes, list[Transfer], Order]


def bsp_a2a(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """One all-reduce of everything, after backward."""
    total = sum(layers.nbytes)
    everything = Transfer(tuple(range(layers.count)), (cluster.all_reduce(total),), total, after_backward=True)
    return _merged(layers, cluster), [everything], Order()


def wfbp_a2a(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """An all-reduce for each tensor, as backward makes them."""
    sent = [Transfer((i,), (cluster.all_reduce(layers.nbytes[i]),), layers.nbytes[i]) for i in _arriving(layers)]
    return layers, sent, Order()


def mg_wfbp(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """An all-reduce for each group, by the released program's rule."""
    costs = DenseCosts(cluster.planned or cluster.ring, bytes_each=1)
    groups = greedy([round(n) for n in layers.nbytes], layers.backward, costs)
    sizes = [sum(layers.nbytes[i] for i in group) for group in groups]
    sent = [Transfer(group, (cluster.all_reduce(n),), n) for group, n in zip(groups, sizes, strict=True)]
    return _merged(layers, cluster), sent, Order()


def bsp_ps(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """Everything in one buffer, pushed and pulled in pieces after backward."""
    pieces = [((0,), n) for n in _cut(sum(layers.nbytes), PIECE_BYTES)]  # the first layer waits for all of them
    return _merged(layers, cluster), _pushed(pieces, cluster, after_backward=True), Order()


def wfbp_ps(layers: LayerTimes, cluster: Cluster, piece_bytes: float = PIECE_BYTES) -> Tasks:
    """Pieces of each tensor, pushed and pulled as backward makes them."""
    pieces = [((i,), n) for i in _arriving(layers) for n in _cut(layers.nbytes[i], piece_bytes)]
    return layers, _pushed(pieces, cluster), Order()


def bytescheduler_ps(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """The same with servers that answer the most urgent first: what the measured runs switched on, and no more."""
    _, sent, _ = wfbp_ps(layers, cluster)
    return layers, sent, Order({f"from{s}": Lane(by_urgency=True) for s in range(cluster.server_count)})


def bytescheduler_a2a(layers: LayerTimes, cluster: Cluster, cycle_seconds: float | None = CYCLE_SECONDS) -> Tasks:
    """The most urgent pieces up to the credit, fused by Horovod once a cycle; each layer waits for its own.

    What is fused ends together, so that no credit is left meanwhile: the next pieces wait for the next cycle. Without a
    cycle every piece is an all-reduce of its own.
    """
    stage = cluster.all_reduce if cycle_seconds is None else cluster.part_of_all_reduce
    pieces = [(i, n) for i in _arriving(layers) for n in _cut(layers.nbytes[i], PARTITION_BYTES)]
    sent = [Transfer((i,), (stage(n),), n) for i, n in pieces]
    fuses = None if cycle_seconds is None else cycle_seconds + cluster.ring.startup_seconds
    return layers, sent, Order({RING: Lane(by_urgency=True, credit_bytes=CREDIT_BYTES, fuses=fuses)}, gated=True)


# The simplest first.
METHODS: dict[str, Callable[[LayerTimes, Cluster], Tasks]] = {
    "BSP-PS": bsp_ps,
    "BSP-A2A": bsp_a2a,
    "WFBP-PS": wfbp_ps,
    "WFBP-A2A": wfbp_a2a,
    "MG-WFBP": mg_wfbp,
    "ByteScheduler-PS": bytescheduler_ps,
    "ByteScheduler-A2A": bytescheduler_a2a,
}


def iteration_seconds(method: str, layers: LayerTimes, cluster: Cluster) -> float:
    """From one iteration to the next, by one of the seven."""
    if method not in METHODS:
        raise LaconicError(f"no method {method!r}; known are {', '.join(METHODS)}")
    return period(*METHODS[method](layers, cluster))


@dataclass(frozen=True)
class MethodChoice:
    """The method with the shortest iteration, or a simpler one that takes as long, and what all of them take."""

    method: str
    seconds: Mapping[str, float]

    @property
    def margin(self) -> float:
        """How much longer the second takes, as a part of the first's time."""
        first, second = sorted(self.seconds.values())[:2]
        return second / first - 1


@technique(
    "auto_architecture",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247, section 5.2 (an open problem)",
    evidence="published",
    reproduces="the survey's experiments: the chosen method is within 10 percent of the best in all 18 cells",
)
def choose(layers: LayerTimes, cluster: Cluster, methods: Iterable[str] = METHODS) -> MethodChoice:
    """Servers or all-reduce, at once or as backward goes, merged or cut: by simulating an iteration of each.

    Reading chosen: the candidates are the seven methods of the survey's experiments, servers as many as the cluster
    has. Where the margin is below the model's error, try both.
    """
    seconds = {method: iteration_seconds(method, layers, cluster) for method in methods}
    return MethodChoice(simplest(seconds), seconds)


def simplest(seconds: Mapping[str, float], alike: float = 0.005) -> str:
    """Of those within half a percent of the shortest iteration, the one with the least machinery."""
    enough = min(seconds.values()) * (1 + alike)
    return next(method for method in METHODS if seconds.get(method, math.inf) <= enough)


def _arriving(layers: LayerTimes) -> range:
    return range(layers.count - 1, -1, -1)


def _cut(nbytes: float, most: float) -> list[float]:
    if nbytes <= most:
        return [nbytes]
    return [min(most, nbytes - start * most) for start in range(math.ceil(nbytes / most))]


def _merged(layers: LayerTimes, cluster: Cluster) -> LayerTimes:
    """With the copies into the buffer during backward, and back before forward."""
    copies = [cluster.copying(n) for n in layers.nbytes]
    backward = tuple(seconds + copy for seconds, copy in zip(layers.backward, copies, strict=True))
    return replace(layers, forward=(layers.forward[0] + sum(copies), *layers.forward[1:]), backward=backward)


def _pushed(
    pieces: Sequence[tuple[tuple[int, ...], float]], cluster: Cluster, after_backward: bool = False
) -> list[Transfer]:
    """Every piece to the server that has the fewest bytes so far."""
    loads = [0.0] * cluster.server_count
    sent = []
    for tensors, nbytes in pieces:
        server = loads.index(min(loads))
        loads[server] += nbytes
        sent.append(Transfer(tensors, cluster.push_pull(nbytes, server), nbytes, after_backward))
    return sent

"""The seven ways to exchange gradients that the survey of Shi et al. (arXiv 2005.13247) measured.

Each method turns layer times and a cluster into the transfers of one iteration and the order in which lanes serve them.
"""

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

PIECE_BYTES = 4_096_000  # size of the pieces into which BytePS cuts tensors
PARTITION_BYTES, CREDIT_BYTES = 16_000_000, 64_000_000  # of ByteScheduler, as it was run: 4 and 16 million parameters
CYCLE_SECONDS = 5e-3  # of Horovod before 0.21: workers agree once a cycle on the tensors that are ready

WFBP_A2A, BYTESCHEDULER_A2A = "WFBP-A2A", "ByteScheduler-A2A"

Tasks = tuple[LayerTimes, list[Transfer], Order]
"""An iteration's layer times (with copies into buffers), its transfers, and their order on the lanes."""


def bsp_a2a(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """BSP-A2A: one all-reduce of all gradients, after backward."""
    total = sum(layers.nbytes)
    everything = Transfer(tuple(range(layers.count)), (cluster.all_reduce(total),), total, after_backward=True)
    return _merged(layers, cluster), [everything], Order()


def wfbp_a2a(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """WFBP-A2A: an all-reduce for each tensor, as backward produces them (wait-free backpropagation)."""
    sent = [Transfer((i,), (cluster.all_reduce(layers.nbytes[i]),), layers.nbytes[i]) for i in _arriving(layers)]
    return layers, sent, Order()


def mg_wfbp(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """MG-WFBP: an all-reduce for each group of tensors, merged by the released program's rule."""
    costs = DenseCosts(cluster.planned or cluster.ring, bytes_each=1)
    groups = greedy([round(n) for n in layers.nbytes], layers.backward, costs)
    sizes = [sum(layers.nbytes[i] for i in group) for group in groups]
    sent = [Transfer(group, (cluster.all_reduce(n),), n) for group, n in zip(groups, sizes, strict=True)]
    return _merged(layers, cluster), sent, Order()


def bsp_ps(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """BSP-PS: all gradients in one buffer, pushed to servers and pulled in pieces after backward."""
    pieces = [((0,), n) for n in _cut(sum(layers.nbytes), PIECE_BYTES)]  # the first layer waits for all of them
    return _merged(layers, cluster), _pushed(pieces, cluster, after_backward=True), Order()


def wfbp_ps(layers: LayerTimes, cluster: Cluster, piece_bytes: float = PIECE_BYTES) -> Tasks:
    """WFBP-PS: pieces of each tensor, pushed to servers and pulled as backward produces them."""
    pieces = [((i,), n) for i in _arriving(layers) for n in _cut(layers.nbytes[i], piece_bytes)]
    return layers, _pushed(pieces, cluster), Order()


def bytescheduler_ps(layers: LayerTimes, cluster: Cluster) -> Tasks:
    """ByteScheduler-PS: as WFBP-PS, with servers that answer the most urgent piece first.

    The measured runs switched on this much of ByteScheduler, and no more.
    """
    _, sent, _ = wfbp_ps(layers, cluster)
    return layers, sent, Order({f"from{s}": Lane(by_urgency=True) for s in range(cluster.server_count)})


def bytescheduler_a2a(layers: LayerTimes, cluster: Cluster, cycle_seconds: float | None = CYCLE_SECONDS) -> Tasks:
    """ByteScheduler-A2A: the most urgent pieces up to the credit, fused by Horovod once a cycle.

    Each layer waits for its own pieces only. Fused pieces end together, so that no credit is left meanwhile and the
    next pieces wait for the next cycle. Without a cycle every piece is an all-reduce of its own.
    """
    stage = cluster.all_reduce if cycle_seconds is None else cluster.part_of_all_reduce
    pieces = [(i, n) for i in _arriving(layers) for n in _cut(layers.nbytes[i], PARTITION_BYTES)]
    sent = [Transfer((i,), (stage(n),), n) for i, n in pieces]
    fuses = None if cycle_seconds is None else cycle_seconds + cluster.ring.startup_seconds
    return layers, sent, Order({RING: Lane(by_urgency=True, credit_bytes=CREDIT_BYTES, fuses=fuses)}, gated=True)


METHODS: dict[str, Callable[[LayerTimes, Cluster], Tasks]] = {
    "BSP-PS": bsp_ps,
    "BSP-A2A": bsp_a2a,
    "WFBP-PS": wfbp_ps,
    WFBP_A2A: wfbp_a2a,
    "MG-WFBP": mg_wfbp,
    "ByteScheduler-PS": bytescheduler_ps,
    BYTESCHEDULER_A2A: bytescheduler_a2a,
}
"""The methods by the survey's names, the simplest first."""


def iteration_seconds(method: str, layers: LayerTimes, cluster: Cluster) -> float:
    """Return the seconds of an iteration in the steady state with one of the seven methods."""
    if method not in METHODS:
        raise LaconicError(f"no method {method!r}; known are {', '.join(METHODS)}")
    return period(*METHODS[method](layers, cluster))


@dataclass(frozen=True)
class MethodChoice:
    """The chosen method, the simplest of those with the shortest iteration, and the seconds of all methods."""

    method: str
    seconds: Mapping[str, float]

    @property
    def margin(self) -> float:
        """How much longer the second fastest method takes, as a share of the fastest one's time."""
        first, second = sorted(self.seconds.values())[:2]
        return second / first - 1


@technique(
    "auto_architecture",
    axis="schedule",
    paper="Shi et al., arXiv 2005.13247, section 5.2 (an open problem)",
    evidence="published",
    reproduces="the survey's experiments: the chosen method is within 10 percent of the best in all 18 cells",
    why_no_word=(
        "It chooses between whole sentences, before a training: `laconic plan` does so for any, and the strategy "
        '"auto" trains with what it finds.'
    ),
)
def choose(layers: LayerTimes, cluster: Cluster, methods: Iterable[str] = METHODS) -> MethodChoice:
    """Choose between servers and all-reduce, after or during backward, merged or cut, by simulating each.

    Reading chosen: the candidates are the seven methods of the survey's experiments, servers as many as the cluster
    has. Where the margin is below the model's error, try both.
    """
    seconds = {method: iteration_seconds(method, layers, cluster) for method in methods}
    return MethodChoice(simplest(seconds), seconds)


def simplest(seconds: Mapping[str, float], alike: float = 0.005) -> str:
    """Return the simplest of the methods within half a percent of the shortest iteration."""
    enough = min(seconds.values()) * (1 + alike)
    return next(method for method in METHODS if seconds.get(method, math.inf) <= enough)


def _arriving(layers: LayerTimes) -> range:
    return range(layers.count - 1, -1, -1)


def _cut(nbytes: float, most: float) -> list[float]:
    """Return the bytes of each piece: all but the last are as large as they may be, and nothing is one piece too."""
    return [min(most, nbytes - start * most) for start in range(max(1, math.ceil(nbytes / most)))]


def _merged(layers: LayerTimes, cluster: Cluster) -> LayerTimes:
    """Return the layer times with the copies into a merged buffer during backward, and back before forward."""
    copies = [cluster.copying(n) for n in layers.nbytes]
    backward = tuple(seconds + copy for seconds, copy in zip(layers.backward, copies, strict=True))
    return replace(layers, forward=(layers.forward[0] + sum(copies), *layers.forward[1:]), backward=backward)


def _pushed(
    pieces: Sequence[tuple[tuple[int, ...], float]], cluster: Cluster, after_backward: bool = False
) -> list[Transfer]:
    """Return the transfers of all pieces, each to the server that has the fewest bytes so far."""
    loads = [0.0] * cluster.server_count
    sent = []
    for tensors, nbytes in pieces:
        server = loads.index(min(loads))
        loads[server] += nbytes
        sent.append(Transfer(tensors, cluster.push_pull(nbytes, server), nbytes, after_backward))
    return sent

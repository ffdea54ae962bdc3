"""What no schedule can beat: hops that a chunk needs, and bytes that must enter a part of the network."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.collective.relation import Relation
from laconic.collective.synthesis.wiring import Wiring
from laconic.errors import LaconicError
from laconic.network.graph import Graph

_ALL_SETS_UP_TO = 16
"""Up to so many nodes every set of them is looked at."""


@dataclass(frozen=True)
class Bounds:
    """What no schedule of a collective on a graph can beat.

    - `steps`: the hops of the chunk that has the longest way.
    - `vectors_per_second`: at most so many of a rank's vectors pass in a second, whatever the chunks.
    """

    steps: int
    vectors_per_second: float

    def seconds(self, nbytes: float, latency_seconds: float = 0.0) -> float:
        """Return the least time for vectors of so many bytes, where every hop has such a latency at least."""
        return max(self.steps * latency_seconds, nbytes / self.vectors_per_second)


def bounds(graph: Graph, relation: Relation, wiring: Wiring) -> Bounds:
    """Return the bounds of a collective that copies: a gather, a broadcast, an all-to-all.

    The bytes that must enter a set of nodes are those of chunks that all are outside and some of whose goals are in it;
    they pass the links that lead into it. All sets are tried where there are few nodes, and otherwise all that lie
    within some number of hops of a node, or beyond.
    """
    sources, goals = _holders(relation)
    steps = 0
    for chunk in range(relation.chunks):
        hops = wiring.hops[np.ix_(sources[chunk], goals[chunk])]
        if (hops < 0).all(axis=0).any():
            raise LaconicError(f"no way leads to some rank that should get chunk {chunk}")
        steps = max(steps, int(np.where(hops < 0, graph.size, hops).min(axis=0).max()))
    inside = _node_sets(graph)
    entering = inside[:, graph.ends[:, 1]] & ~inside[:, graph.ends[:, 0]]
    capacity = entering @ graph.capacities
    share = np.zeros(len(inside))
    alike = Counter((tuple(a), tuple(b)) for a, b in zip(sources, goals, strict=True))
    for (outside, wanted), count in alike.items():
        must = ~inside[:, list(outside)].any(axis=1) & inside[:, list(wanted)].any(axis=1)
        share += must * count / relation.pieces
    needed = share > 0
    return Bounds(steps, float((capacity[needed] / share[needed]).min()) if needed.any() else np.inf)


def _holders(relation: Relation) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ranks that hold each chunk before, and those that hold it after."""
    found: tuple[list[list[int]], list[list[int]]] = (
        [[] for _ in range(relation.chunks)],
        [[] for _ in range(relation.chunks)],
    )
    for held, places in zip(found, (relation.before, relation.after), strict=True):
        for rank, chunk in zip(*np.divmod(places, relation.chunks), strict=True):
            held[int(chunk)].append(int(rank))
    return found


def _node_sets(graph: Graph) -> NDArray[np.bool_]:
    """Return sets of nodes, a row each."""
    nodes = graph.nodes
    if nodes <= _ALL_SETS_UP_TO:
        return (np.arange(1, 2**nodes - 1)[:, None] >> np.arange(nodes) & 1).astype(bool)
    joined = np.eye(nodes, dtype=bool)
    joined[graph.ends[:, 0], graph.ends[:, 1]] = True
    ball, found = np.eye(nodes, dtype=bool), []
    while not ball.all():
        found += [ball, ~ball]
        wider = ball @ joined
        if (wider == ball).all():
            break
        ball = wider
    sets = np.unique(np.concatenate(found), axis=0)
    return sets[sets.any(axis=1) & ~sets.all(axis=1)]

"""Networks without a switch: ranks joined by links of their own, over which they forward what is for others."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from laconic.collective.probe import Probe
from laconic.network.graph import Graph

_AS_FAST = 0.75
"""A pair may have a link if its rate is at least this share of the best that either end showed with anyone."""

_AS_NEAR = 1.5
"""A pair may have a link if its latency is at most so many times the least that either end showed with anyone."""


def direct_links(probe: Probe) -> list[Graph]:
    """Return graphs of links between pairs, while others share these: one of the pairs that are as fast as can be, and
    one of those that are as near, whose rates were lower where others used the same links. A graph that joins all
    pairs, as a switch does, or not all ranks, is left out."""
    own = np.eye(probe.size, dtype=bool)
    rates, latencies = (np.where(own, 0.0, probe.bits_per_second), np.where(own, np.inf, probe.latency_seconds))
    best, least = rates.max(axis=1), latencies.min(axis=1)
    possible = np.minimum(best[:, None], best)
    fast, near = rates >= _AS_FAST * possible, latencies <= _AS_NEAR * np.maximum(least[:, None], least)
    found = []
    for joined, of_links in ((fast & ~own, rates), (near & ~own, possible)):
        if joined.sum() < probe.size * (probe.size - 1) and connected_components(csr_array(joined))[0] == 1:
            found.append(Graph(probe.size, np.argwhere(joined), of_links[joined], latencies[joined]))
    return found


def walk(graph: Graph) -> list[int]:
    """Return the ranks in an order in which neighbours have a link as far as possible: the cycle, where it is one."""
    order = [0]
    while left := sorted({*range(graph.size)} - {*order}):
        ends = {int(graph.ends[link, 1]) for link in graph.leaving[order[-1]]}
        order.append(next((rank for rank in left if rank in ends), left[0]))
    return order

"""Uniform traffic: every rank sends as much to every other, over all shortest ways in equal parts.

Nothing here lists the p² messages of an all-to-all: what the ranks send is one flow for each source.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from laconic.network.fluid import Fluid, Job
from laconic.network.graph import Graph
from laconic.network.routes import Vector


def source_loads(graph: Graph, source: int) -> Vector:
    """Return the bytes on every link where one rank sends a byte to every other rank.

    At each node traffic is divided by the number of shortest ways (in links) that lead on, as switches do that balance
    their load.
    """
    ways, hops, order = np.zeros(graph.nodes), np.full(graph.nodes, -1), []
    ways[source], hops[source] = 1.0, 0
    queue = deque([source])
    while queue:
        node = queue.popleft()
        order.append(node)
        for link in graph.leaving[node]:
            to = int(graph.ends[link, 1])
            if hops[to] < 0:
                hops[to] = hops[node] + 1
                queue.append(to)
            if hops[to] == hops[node] + 1:
                ways[to] += ways[node]
    through, loads = np.zeros(graph.nodes), np.zeros(len(graph.ends))
    for node in reversed(order):  # what ends here or behind, from the far end back
        for link in graph.leaving[node]:
            to = int(graph.ends[link, 1])
            if hops[to] == hops[node] + 1:
                loads[link] = (through[to] + (to < graph.size)) * ways[node] / ways[to]
                through[node] += loads[link]
    return loads


def uniform_loads(graph: Graph) -> Vector:
    """Return the bytes on every link where every rank sends a byte to every other."""
    total = np.zeros(len(graph.ends))
    for source in range(graph.size):
        total += source_loads(graph, source)
    return total


def exchange_seconds(graph: Graph, nbytes: float) -> float:
    """Return how long an all-to-all takes in which every rank has so many bytes, an equal part for each rank: flows,
    one for each source, that share links max-min fairly."""
    fluid, ends = Fluid(graph.capacities), [0.0]
    for source in range(graph.size):
        loads = source_loads(graph, source) * nbytes / graph.size
        links = np.flatnonzero(loads)
        fluid.add(Job(links, loads[links], 0.0, ends.append), 0.0)
    while (event := fluid.next_event()) < np.inf:
        fluid.advance(event)
    return max(ends)


def cut_bytes_per_second(graph: Graph, part: list[int]) -> float:
    """Return the most that these ranks can send to the others at once: the least cut between them. For half of the
    ranks, divided where this is least, it is the bisection bandwidth."""
    least, total = float(graph.capacities.min()), float(graph.capacities.sum())
    unit = least / max(1.0, 1e9 * least // total)  # the solver takes integers
    source, sink, rest = graph.nodes, graph.nodes + 1, sorted(set(range(graph.size)) - set(part))
    joins = [(source, rank) for rank in part] + [(rank, sink) for rank in rest]
    ends = np.concatenate([graph.ends, np.array(joins)])
    rates = np.concatenate([np.rint(graph.capacities / unit), np.full(len(joins), 1e9)]).astype(np.int32)
    flow = maximum_flow(csr_array((rates, ends.T), shape=(sink + 1, sink + 1)), source, sink)
    return float(flow.flow_value) * unit

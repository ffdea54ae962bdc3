"""The sketch of a graph about which nobody has said anything: hosts are ranks that fast ways join."""

from __future__ import annotations

import numpy as np

from laconic.collective.relation import Relation
from laconic.collective.synthesis.sketch import Sketch, hosts_sketch
from laconic.collective.synthesis.symmetry import symmetry, turned
from laconic.collective.synthesis.wiring import Wiring, wiring
from laconic.network.graph import Graph


def sketch_of(graph: Graph, relation: Relation) -> Sketch:
    """Return the sketch of a graph: that of hosts, where ways within groups of neighbouring ranks are at least twice as
    fast as all others, and otherwise that of all ways."""
    ways = wiring(graph)
    inside = _inside(ways)
    sketch = (
        hosts_sketch(graph.size // inside, inside) if inside else Sketch(frozenset(ways.number), ((1, graph.size),))
    )
    kept = wiring(graph, sketch.ways)
    turns = tuple(turn for turn in sketch.turns if symmetry(kept, relation, turned(graph.size, *turn)) is not None)
    return Sketch(sketch.ways, turns, sketch.chunks, sketch.switches)


def _inside(ways: Wiring) -> int:
    """Return how many neighbouring ranks a host has, or 0 where there are none such."""
    rates = np.unique(ways.rates)
    if len(rates) < 2 or (rates[1:] / rates[:-1]).max() < 2:
        return 0
    slow = rates[(rates[1:] / rates[:-1]).argmax()]
    fast = {(a, b) for (a, b), way in ways.number.items() if ways.rates[way] > slow}
    for inside in range(2, ways.size):
        near = {(a, b) for a in range(ways.size) for b in range(ways.size) if a != b and a // inside == b // inside}
        if ways.size % inside == 0 and near == fast:
            between = {(a, b) for a, b in ways.number if a % inside == b % inside and a != b}
            return inside if len(between) == ways.size * (ways.size // inside - 1) else 0
    return 0

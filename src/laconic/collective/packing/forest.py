"""Throughput-optimal forests for any graph with switches, in polynomial time and without a solver."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from laconic.collective.packing.arborescences import Growing, pack_arborescences
from laconic.collective.packing.capacities import integer_rates
from laconic.collective.packing.rate import best_rate
from laconic.collective.packing.splitting import Way, split_switches
from laconic.errors import LaconicError
from laconic.network.graph import Graph


@dataclass(frozen=True)
class Tree:
    """A tree that spans all ranks, with the rate at which it sends.

    - `root`: the rank that everything comes from.
    - `links`: (parent, child) between ranks, each after the one that reaches its parent.
    - `bits_per_second`: the rate along each of these links.
    """

    root: int
    links: tuple[tuple[int, int], ...]
    bits_per_second: float

    def depths(self) -> dict[int, int]:
        """Return how far each rank is from the root."""
        return Growing(1, self.root, self.links).depths()


@dataclass(frozen=True)
class Forest:
    """Trees from all ranks that together send as fast as the graph allows.

    - `size`: the number of ranks.
    - `trees`: their rates from each root have the sum `bits_per_second`.
    - `bits_per_second`: the rate at which every rank broadcasts, which no all-gather on this graph can exceed.
    - `bottleneck`: the nodes whose links to the others allow no more.
    - `ways`: for each pair of ranks the ways through the graph that trees use between them, with the rate of each.
    """

    size: int
    trees: tuple[Tree, ...]
    bits_per_second: float
    bottleneck: frozenset[int]
    ways: dict[tuple[int, int], list[tuple[Way, float]]]

    def all_gather_seconds(self, nbytes: float) -> float:
        """Return the least time of an all-gather that ends with so many bytes at every rank."""
        return nbytes / self.size * 8 / self.bits_per_second


def pack(graph: Graph) -> Forest:
    """Return the trees of a throughput-optimal all-gather on this graph (the idea of Zhao et al., arXiv 2402.06787).

    The smallest cut tells the best rate. Switches are split off, so that trees join ranks alone, and trees are packed
    into what is left. Where rates are multiples of a common one they are met exactly.
    """
    if graph.size < 2:
        raise LaconicError("trees join at least two ranks")
    capacity, unit = integer_rates(graph)
    rate, side = best_rate(capacity, graph.size)
    common = int(np.gcd.reduce(capacity[capacity > 0]))
    scale = common * rate.denominator // gcd(rate.numerator, common * rate.denominator)
    whole = capacity // common * scale
    count = int(rate * scale / common)
    direct, ways = split_switches(whole, graph, count)
    packed = pack_arborescences(direct, dict.fromkeys(range(graph.size), count))
    one = unit * common / scale
    trees = tuple(Tree(grown.root, grown.links, grown.count * one) for grown in packed)
    used = {
        ends: [(way, amount * one) for way, amount in found]
        for ends, found in ways.items()
        if max(ends) < graph.size and found
    }
    return Forest(graph.size, trees, float(rate) * unit, frozenset(np.flatnonzero(side).tolist()), used)


def loads(forest: Forest) -> dict[tuple[int, int], float]:
    """Return the rate at which trees send from one rank to another, by pairs."""
    found: dict[tuple[int, int], float] = {}
    for tree in forest.trees:
        for link in tree.links:
            found[link] = found.get(link, 0.0) + tree.bits_per_second
    return found


def link_loads(forest: Forest, graph: Graph) -> NDArray[np.float64]:
    """Return the rate at which trees can send over each link of the graph along the forest's ways."""
    number = {ends: k for k, ends in enumerate(map(tuple, graph.ends.tolist()))}
    found = np.zeros(len(graph.ends))
    for ways in forest.ways.values():
        for way, rate in ways:
            for ends in pairwise(way):
                found[number[ends]] += rate
    return found

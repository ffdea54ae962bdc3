"""Packed trees send as fast as the narrowest cut allows, over links that have the room."""

from __future__ import annotations

import itertools
from itertools import pairwise

import numpy as np
import pytest

from laconic.collective.packing.forest import Forest, link_loads, loads, pack
from laconic.collective.packing.tree_programs import forest_all_gather, forest_all_reduce, forest_reduce_scatter
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.network.datacenter_graphs import fat_tree, torus
from laconic.network.graph import Graph
from laconic.network.known_graphs import dgx1, dgx_a100

S = 1e9


def check(forest: Forest, graph: Graph, tolerance: float = 1e-9) -> None:
    """Every rank's trees span all ranks and have the promised rate; links have room for them; a cut allows no more."""
    for tree in forest.trees:
        reached = [tree.root]
        for parent, child in tree.links:
            assert parent in reached and child not in reached
            reached.append(child)
        assert sorted(reached) == list(range(graph.size))
    for root in range(graph.size):
        rate = sum(tree.bits_per_second for tree in forest.trees if tree.root == root)
        assert rate == pytest.approx(forest.bits_per_second, rel=1e-9)
    for (source, destination), ways in forest.ways.items():
        assert all(way[0] == source and way[-1] == destination for way, _ in ways)
    for ends, rate in loads(forest).items():
        assert rate <= sum(each for _, each in forest.ways[ends]) * (1 + 1e-9)
    assert (link_loads(forest, graph) <= graph.bits_per_second * (1 + 1e-9)).all()
    assert forest.bits_per_second >= cut_rate(graph, forest.bottleneck) * (1 - tolerance)


def cut_rate(graph: Graph, inside: frozenset[int]) -> float:
    """Return the rate per rank at which the ranks of a set, which lacks some, can all send out of it."""
    assert not set(range(graph.size)) <= inside
    leaves = [(a in inside) and (b not in inside) for a, b in graph.ends.tolist()]
    return float(graph.bits_per_second[leaves].sum()) / len(inside & set(range(graph.size)))


def some_graph(seed: int) -> Graph:
    """Return a few ranks and switches with links of random rates, of which some are no multiples of others."""
    draw = np.random.default_rng(seed)
    size, switches = int(draw.integers(2, 6)), int(draw.integers(0, 4))
    nodes = size + switches
    links = {(int(draw.integers(0, k)), k) for k in draw.permutation(np.arange(1, nodes))}
    links |= {(int(a), int(b)) for a, b in draw.integers(0, nodes, (2 * nodes, 2)) if a < b}
    rates = draw.integers(1, 6, len(links)) if seed % 2 else draw.random(len(links)) + 0.1
    return Graph.of(size, [(a, b, float(rate)) for (a, b), rate in zip(sorted(links), rates, strict=True)])


@pytest.mark.parametrize("seed", range(24))
def test_any_graph_is_used_up_to_its_narrowest_cut(seed: int) -> None:
    """The cut found is the narrowest of all, which are tried one by one."""
    graph = some_graph(seed)
    forest = pack(graph)
    check(forest, graph, tolerance=1e-3)
    nodes = range(graph.nodes)
    sets = (frozenset(s) for k in range(1, graph.nodes) for s in itertools.combinations(nodes, k))
    ranks = set(range(graph.size))
    narrowest = min(cut_rate(graph, some) for some in sets if some & ranks and not ranks <= some)
    assert forest.bits_per_second == pytest.approx(narrowest, rel=1e-3 if seed % 2 == 0 else 1e-9)
    for program in (forest_all_gather(forest, 3), forest_reduce_scatter(forest, 3), forest_all_reduce(forest, 3)):
        assert program.size == graph.size and program.shares.sum() == pytest.approx(1)


FAT = fat_tree(4, 100e9, own_bits_per_second=300e9)
GRAPHS = {
    "dgx1": (dgx1(), 6 * 200e9 / 7),
    "dgx_a100": (dgx_a100(2), 2.6e12 / 15),
    "slow NICs": (dgx_a100(2, 2.4e12, 25e9), 8 * 25e9 / 8),
    "fat tree": (fat_tree(4, 100e9), 100e9 / 15),
    "torus": (torus((4, 2), (100e9, 25e9)), 250e9 / 7),
}


@pytest.mark.parametrize("name", [*GRAPHS])
def test_known_networks_are_used_as_their_cuts_say(name: str) -> None:
    graph, rate = GRAPHS[name]
    forest = pack(graph)
    check(forest, graph)
    assert forest.bits_per_second == pytest.approx(rate, rel=1e-9)
    gather = forest_all_gather(forest)
    least = forest.all_gather_seconds(S)
    found = price(gather, S, graph)
    deepest = max(max(tree.depths().values()) for tree in forest.trees)
    assert found.busiest_seconds == pytest.approx(least, rel=0.01)
    assert least * 0.999 <= found.seconds <= least * (deepest + 15) / 16 * 1.01
    both = price(forest_all_reduce(forest), S, graph)
    assert both.seconds == pytest.approx(2 * found.seconds, rel=0.1)


def test_a_fat_tree_is_used_around_failed_links() -> None:
    """Two hosts share one uplink; where another host has none, it cannot be reached, which is said."""
    whole = pack(FAT)
    check(whole, FAT)
    assert whole.bits_per_second == pytest.approx(200e9 / 14)
    broken = FAT.without([(16, 24), (25, 34), (20, 28)])
    forest = pack(broken)
    check(forest, broken)
    assert forest.bits_per_second == pytest.approx(100e9 / 14)
    assert not any({16, 24} <= set(pair) for ways in forest.ways.values() for way, _ in ways for pair in pairwise(way))
    with pytest.raises(LaconicError, match="cannot be reached"):
        pack(broken.without([(3, 17)]))


def test_a_ring_of_links_in_one_direction() -> None:
    """Without switches links need not be alike in both directions; sums go along the links turned round."""
    ring = Graph.of(5, [(rank, (rank + 1) % 5, 8e9) for rank in range(5)], duplex=False)
    forest = pack(ring)
    check(forest, ring)
    assert forest.bits_per_second == pytest.approx(8e9 / 4)
    turned = Graph(5, ring.ends[:, ::-1], ring.bits_per_second, ring.latency_seconds)
    scatter = forest_reduce_scatter(pack(turned), 1)
    assert price(scatter, S, ring).busiest_seconds == pytest.approx(forest.all_gather_seconds(S))


def test_switches_need_balance_and_ranks_company() -> None:
    uneven = Graph.of(3, [(0, 3, 2.0), (3, 1, 1.0), (3, 2, 1.0), (1, 0, 2.0), (2, 0, 2.0)], duplex=False)
    with pytest.raises(LaconicError, match="as much enters each node as leaves it"):
        pack(uneven)
    with pytest.raises(LaconicError, match="at least two ranks"):
        pack(Graph.of(1, []))

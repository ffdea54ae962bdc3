"""Greedy schedules are near their bounds on unequal and broken graphs, and are right because they are programs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from laconic.collective.greedy import greedy_all_gather, greedy_all_reduce
from laconic.collective.packing.capacities import integer_rates
from laconic.collective.packing.rate import best_rate
from laconic.collective.price import price
from laconic.errors import LaconicError
from laconic.network.datacenter_graphs import torus
from laconic.network.graph import Graph
from laconic.network.known_graphs import dgx1, dgx_a100

S = 1e9


def bound(graph: Graph) -> float:
    """Return the least time of an all-gather, by the narrowest cut."""
    capacity, unit = integer_rates(graph)
    rate, _ = best_rate(capacity, graph.size)
    return S / graph.size * 8 / (float(rate) * unit)


def hosts(count: int, each: int, ring: bool) -> Graph:
    """Return hosts whose ranks are joined fast, all with all or in a ring, and slowly to the next host's each."""
    inside = [(a, (a + 1) % each) for a in range(each)] if ring else [*itertools.combinations(range(each), 2)]
    links = [(h * each + a, h * each + b, 100e9) for h in range(count) for a, b in inside]
    links += [(h * each + a, (h + 1) % count * each + a, 10e9) for h in range(count) for a in range(each)]
    return Graph.of(count * each, links)


def tangle(size: int, low: float, seed: int) -> Graph:
    """Return a ring with twice as many links across, all of random rates."""
    draw = np.random.default_rng(seed)
    links = {(min(a, b), max(a, b)) for a, b in ((k, (k + 1) % size) for k in range(size))}
    while len(links) < 3 * size:
        a, b = sorted(draw.integers(0, size, 2).tolist())
        links |= {(a, b)} if a != b else set()
    return Graph.of(size, [(a, b, float(draw.uniform(low, 100e9))) for a, b in sorted(links)])


GRAPHS = {
    "dgx1": dgx1(),
    "torus of three rates": torus((4, 4, 8), (200e9, 100e9, 50e9)),
    "hosts": hosts(16, 8, ring=False),
    "hosts of rings": hosts(16, 8, ring=True),
    "tangle": tangle(128, 25e9, 0),
    "wide tangle": tangle(48, 5e9, 1),
    "hosts with failed links": hosts(16, 8, ring=False).without([(0, 8), (1, 9), (0, 1), (20, 28)]),
    "torus with failed links": torus((8, 16), 100e9).without([(0, 1), (5, 6), (77, 78)]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in ("hosts", "tangle") else ()) for name in GRAPHS]
)
def test_all_reduces_are_near_the_bound_of_the_narrowest_cut(name: str) -> None:
    graph = GRAPHS[name]
    program = greedy_all_reduce(graph)
    links = {*map(tuple, graph.ends.tolist())}
    assert {*zip(program.sends.source.tolist(), program.sends.destination.tolist(), strict=True)} <= links
    assert price(program, S, graph).seconds <= 1.3 * 2 * bound(graph)


@pytest.mark.parametrize("seed", range(3))
def test_every_draw_is_near_the_bound(seed: int) -> None:
    for graph in (hosts(4, 4, ring=False), torus((5, 7), 100e9)):
        assert price(greedy_all_gather(graph, chunks=2, seed=seed), S, graph).seconds <= 1.3 * bound(graph)


def test_a_slow_link_brings_what_its_host_lacks() -> None:
    """Of two hosts each needs the other's chunks once; ranks that share a host do not fetch the same."""
    graph = Graph.of(
        8,
        [(h + a, h + b, 100e9) for h in (0, 4) for a, b in itertools.combinations(range(4), 2)]
        + [(a, a + 4, 5e9) for a in range(4)],
    )
    sends = greedy_all_gather(graph, chunks=3).sends
    crossing = (sends.source < 4) != (sends.destination < 4)
    assert crossing.sum() == 2 * 4 * 3


@pytest.mark.long
def test_a_torus_of_1024_ranks() -> None:
    graph = torus((32, 32), 100e9)
    program = greedy_all_reduce(graph)
    assert price(program, S, graph).busiest_seconds <= 1.3 * 2 * (1023 / 1024 * S * 8 / 400e9)
    assert program.steps <= 1.3 * 2 * 1023 / 4


def test_links_in_one_direction_are_turned_round_for_sums() -> None:
    rates = [(0, 1, 2e9), (1, 2, 2e9), (2, 3, 2e9), (3, 0, 2e9), (0, 2, 1e9), (2, 0, 1e9)]
    graph = Graph.of(4, rates, duplex=False)
    program = greedy_all_reduce(graph)
    allowed = {(a, b) for a, b, _ in rates}
    assert {*zip(program.sends.source.tolist(), program.sends.destination.tolist(), strict=True)} <= allowed


def test_graphs_that_cannot_be_scheduled_are_refused() -> None:
    with pytest.raises(LaconicError, match="cannot be reached"):
        greedy_all_gather(torus((4,), 100e9).without([(0, 1), (0, 3)]))
    with pytest.raises(LaconicError, match="take switches out"):
        greedy_all_gather(dgx_a100(1))

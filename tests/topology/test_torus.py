"""The torus as a network: its size by graph computation, what it carries, two rings in it; and its weights."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from laconic.errors import StrategyError
from laconic.network.fluid import Fluid, Job
from laconic.strategy import Strategy
from laconic.topology.mixing import metropolis
from laconic.topology.torus import Torus

CUBES = [(4, 2), (6, 2), (4, 3), (8, 2)]
RATE = 1.4e9  # bits per second: 175 MB/s, as Blue Gene/L's


def distances(torus: Torus, size: int) -> np.ndarray:
    links = torus.links(size)
    graph = csr_array((np.ones(len(links)), links.T), shape=(size, size))
    return np.asarray(dijkstra(graph, unweighted=True))


def cut(torus: Torus, size: int, inside: np.ndarray) -> int:
    """The number of links, each of two directions, between some nodes and the others."""
    links = torus.links(size)
    return int((inside[links[:, 0]] & ~inside[links[:, 1]]).sum())


@pytest.mark.technique("torus", check=1)
@pytest.mark.parametrize(("k", "n"), CUBES)
def test_links_bisection_and_diameter_of_a_cube(k: int, n: int) -> None:
    """The smallest of the straight cuts in halves; exchanging nodes between halves, from many starts, finds none
    smaller."""
    torus, size = Torus((k,) * n), k**n
    assert len({frozenset(pair) for pair in torus.links(size).tolist()}) == n * size == len(torus.links(size)) / 2
    assert distances(torus, size).max() == n * (k // 2)
    coordinates = np.array(np.unravel_index(np.arange(size), (k,) * n))
    straight = [cut(torus, size, (c - start) % k < k // 2) for c in coordinates for start in range(k)]
    assert min(straight) == 2 * k ** (n - 1)
    chance = np.random.default_rng(0)
    neighbours = np.zeros((size, size), dtype=int)
    neighbours[tuple(torus.links(size).T)] = 1
    for _ in range(20):
        inside = np.isin(np.arange(size), chance.permutation(size)[: size // 2])
        while True:  # the best exchange of two nodes, while one helps
            gain = neighbours @ (~inside).astype(int) - neighbours @ inside.astype(int)
            gains = gain[inside][:, None] - gain[~inside][None] - 2 * neighbours[np.ix_(inside, ~inside)]
            a, b = np.unravel_index(gains.argmax(), gains.shape)
            if gains[a, b] <= 0:
                break
            one, other = np.flatnonzero(inside)[a], np.flatnonzero(~inside)[b]
            inside[one], inside[other] = False, True
        assert cut(torus, size, inside) >= 2 * k ** (n - 1)


@pytest.mark.technique("torus", check=1)
def test_no_bisection_at_all_is_smaller_in_a_torus_of_four_by_four() -> None:
    halves = [(0, *rest) for rest in combinations(range(1, 16), 7)]
    inside, links = np.zeros((len(halves), 16), dtype=bool), Torus((4, 4)).links(16)
    np.put_along_axis(inside, np.array(halves), True, axis=1)
    assert (inside[:, links[:, 0]] & ~inside[:, links[:, 1]]).sum(axis=1).min() == 8


def saturation(torus: Torus, size: int) -> float:
    """The rate at which each node can inject traffic for all nodes alike, itself among them, in rates of a link."""
    sources, destinations = (nodes.reshape(-1) for nodes in np.meshgrid(np.arange(size), np.arange(size)))
    load, ends = torus.load(size, sources, destinations, 1000.0), []
    capacities = torus.capacities(size, RATE)
    network = Fluid(capacities)
    network.add(Job(np.flatnonzero(load), load[load > 0], 0.0, ends.append), 0.0)
    while (event := network.next_event()) < math.inf:
        network.advance(event)
    return 1000.0 * size / ends[0] / capacities[0]


@pytest.mark.technique("torus", check=2)
@pytest.mark.parametrize(("k", "n"), [*CUBES, (5, 2), (7, 2), (16, 2)])
def test_uniform_traffic_saturates_at_eight_kth_of_a_link(k: int, n: int) -> None:
    """For an even side; an odd one has shorter ways, k² - 1 in place of k² over 4k in each dimension."""
    even = 8 / k if k % 2 == 0 else 8 * k / (k * k - 1)
    assert saturation(Torus((k,) * n), k**n) == pytest.approx(even, rel=1e-9)


@pytest.mark.technique("torus", check=2)
def test_flows_of_their_own_finish_when_the_whole_exchange_does() -> None:
    """Every pair's flow at max-min fair rates: all links are equally loaded, so that the last ends at the same time."""
    torus, size, ends = Torus((4, 4)), 16, []
    network = Fluid(torus.capacities(size, RATE))
    for a in range(size):
        for b in set(range(size)) - {a}:
            load = torus.load(size, [a], [b], 1000.0)
            network.add(Job(np.flatnonzero(load), load[load > 0], 0.0, ends.append), 0.0)
    while (event := network.next_event()) < math.inf:
        network.advance(event)
    assert 1000.0 * size / max(ends) / (RATE / 8) == pytest.approx(8 / 4, rel=0.03)


@pytest.mark.parametrize("sides", [(4, 4), (3, 5), (2, 3, 4), (1, 6), (2, 2)])
def test_routes_are_shortest_and_take_dimensions_in_turn(sides: tuple[int, ...]) -> None:
    torus, size = Torus(sides), math.prod(sides)
    links, apart = torus.links(size), distances(torus, size)
    for a in range(size):
        for b in range(size):
            load = torus.load(size, [a], [b], [1.0])
            assert load.sum() == apart[a, b]
            flow = np.zeros(size)
            np.add.at(flow, links[:, 0], load)
            np.add.at(flow, links[:, 1], -load)
            assert np.array_equal(flow, (np.arange(size) == a) * 1.0 - (np.arange(size) == b) * 1.0)
    corner = torus.load(size, [0], [size - 1], 1.0)
    used = links[np.flatnonzero(corner)]
    turns = np.array(np.unravel_index(used, sides))[:, :, 0]
    for earlier, later in combinations(range(len(sides)), 2):  # a later dimension moves where the earlier has arrived
        moving = (
            np.array(np.unravel_index(used[:, 0], sides))[later] != np.array(np.unravel_index(used[:, 1], sides))[later]
        )
        assert (turns[earlier][moving] == sides[earlier] - 1).all()


@pytest.mark.technique("torus", check=3)
@pytest.mark.parametrize("sides", [(4, 4), (4, 6), (5, 7), (3, 3), (8, 8), (3, 10)])
def test_two_cycles_through_all_nodes_share_no_link(sides: tuple[int, int]) -> None:
    torus, size = Torus(sides), math.prod(sides)
    cycles = torus.hamiltonian_cycles(size)
    links = [{frozenset(pair) for pair in zip(cycle, cycle[1:] + cycle[:1], strict=True)} for cycle in cycles]
    assert all(sorted(cycle) == list(range(size)) for cycle in cycles)
    assert not links[0] & links[1]
    assert links[0] | links[1] == {frozenset(pair) for pair in torus.links(size).tolist()}


def test_weights_and_links_are_of_one_graph() -> None:
    for text, workers in (("torus", 12), ("torus([2, 3, 4])", 24), ("torus", 7), ("torus([8])", 8)):
        made = Strategy.parse(text).topology.make()  # type: ignore[attr-defined]
        links = {(min(pair), max(pair)) for pair in made.links(workers).tolist()}
        mixing = made.mixing(workers)
        assert set(mixing.edges) == links
        assert np.array_equal(mixing.at(0), metropolis(workers, links))


def test_sides_that_do_not_fit_are_refused() -> None:
    with pytest.raises(StrategyError, match="has 12 nodes, and there are 8 workers"):
        Torus((3, 4)).mixing(8)
    with pytest.raises(StrategyError, match="two sides of at least 3"):
        Torus((2, 4)).hamiltonian_cycles(8)

"""All-to-alls: a transposition in few steps, and no faster than the network's narrowest cut allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laconic.collective.exchanges import bruck, direct_exchange, pairwise
from laconic.collective.price import price
from laconic.network import datacenter_graphs as graphs
from laconic.network.graph import Graph
from laconic.network.network_tree import Network
from laconic.network.uniform_traffic import cut_bytes_per_second, exchange_seconds, uniform_loads
from tests.collective.on_virtual_workers import after, integers

S = 1e6
RATE = 8e6


@pytest.mark.technique("alltoall_pairwise", check=1)
@pytest.mark.parametrize("size", range(1, 10))
def test_blocks_are_transposed(size: int) -> None:
    given = [integers(3 * size, rank) for rank in range(size)]
    expected = torch.stack(given).view(size, size, 3).transpose(0, 1).reshape(size, -1)
    for make in (pairwise, bruck, direct_exchange):
        found = after(make(size), given, [3] * size * size)
        assert torch.equal(torch.stack(found), expected), make
    sends = pairwise(size).sends
    assert pairwise(size).steps == size - 1 and bruck(size).steps == (size - 1).bit_length()
    for end in (sends.source, sends.destination):  # one block in each step
        assert len(np.unique(sends.step * size + end)) == len(sends) == size * (size - 1)


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_exchanges_take_what_their_formulas_say(size: int) -> None:
    """(p-1) α + (p-1)/p S β in pairs; ceil(log2 p) (α + S/2 β) as Bruck does."""
    network, depth = Network.flat(size, RATE, 1e-3), (size - 1).bit_length()
    assert price(pairwise(size), S, network).seconds == pytest.approx((size - 1) * (1e-3 + S / size / 1e6), rel=1e-9)
    assert price(bruck(size), S, network).seconds == pytest.approx(depth * (1e-3 + S / 2 / 1e6), rel=1e-9)


NETWORKS = {
    "fat-tree": graphs.fat_tree(4, RATE),
    "fat-tree of 54": graphs.fat_tree(6, RATE),
    "torus": graphs.torus([4, 4], RATE),
    "torus with three dimensions": graphs.torus([4, 3, 2], RATE),
    "BCube": graphs.bcube(4, 2, RATE),
    "BCube with three levels": graphs.bcube(2, 3, RATE),
    "HammingMesh": graphs.hamming_mesh((2, 2), (2, 2), RATE),
    "HammingMesh of 64": graphs.hamming_mesh((2, 2), (4, 4), RATE),
}


@pytest.mark.technique("alltoall_pairwise", check=2)
@pytest.mark.parametrize("graph", NETWORKS.values(), ids=NETWORKS)
def test_an_exchange_takes_the_time_of_the_busiest_link_and_no_less_than_any_cut_allows(graph: Graph) -> None:
    size, draw = graph.size, np.random.default_rng(0)
    seconds = exchange_seconds(graph, S)
    assert seconds == pytest.approx((uniform_loads(graph) / graph.capacities).max() * S / size, rel=1e-9)
    halves = [list(range(size // 2)), list(range(0, size, 2))]
    halves += [draw.permutation(size)[: size // 2].tolist() for _ in range(3)]
    for half in halves:
        bisection = cut_bytes_per_second(graph, half)
        assert seconds >= size * S / (4 * bisection) * (1 - 1e-6)
    assert price(direct_exchange(size), S, graph).seconds >= seconds * (1 - 1e-9)  # one way for each pair is no better


@pytest.mark.technique("alltoall_pairwise", check=2)
def test_uniform_traffic_is_what_single_ways_carry_where_there_is_one() -> None:
    """On a switch and on an odd torus with one dimension there is one shortest way for each pair."""
    for graph in (graphs.star(7, RATE), graphs.torus([7], RATE), graphs.bcube(5, 1, RATE)):
        sources, destinations = np.nonzero(~np.eye(graph.size, dtype=bool))
        loads = graph.routes(sources, destinations).load_bytes(np.ones(len(sources)), len(graph.ends))
        np.testing.assert_allclose(uniform_loads(graph), loads)
        assert exchange_seconds(graph, S) == pytest.approx(price(direct_exchange(graph.size), S, graph).seconds)


@pytest.mark.technique("alltoall_pairwise", check=2)
def test_known_cuts_and_loads() -> None:
    """A torus of 4 x 4 is cut by 8 links, a fat-tree by half of its ranks' links; on the torus uniform traffic loads
    every link with p (mean distance of 2.0) / 4 links a rank."""
    assert cut_bytes_per_second(graphs.torus([4, 4], RATE), list(range(8))) == pytest.approx(8e6)
    assert cut_bytes_per_second(graphs.fat_tree(4, RATE), list(range(8))) == pytest.approx(8e6)
    np.testing.assert_allclose(uniform_loads(graphs.torus([4, 4], RATE)), 16 * 2.0 / 4)

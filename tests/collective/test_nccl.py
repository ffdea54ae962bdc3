"""NCCL: the choice by a table of latencies and bandwidths, bus bandwidth, and the search for channels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from laconic.collective.channels import channel_rings, channels, most_cycles
from laconic.collective.nccl import Cluster, bus_bytes_per_second, cheapest, predictions
from laconic.collective.price import price
from laconic.collective.rings import ring, ring_gather, ring_scatter
from laconic.collective.trees import nccl_tree
from laconic.errors import LaconicError, ProgramError
from laconic.network.datacenter_graphs import torus
from laconic.network.graph import Graph
from laconic.network.known_graphs import dgx1
from laconic.network.network_tree import Network
from tests.collective.on_virtual_workers import assert_sums

SIZES = np.geomspace(8, 1e13, 500)


def crossover(cluster: Cluster) -> float:
    """The size from which on rings are taken; below it are trees alone, above it rings alone."""
    chosen = [cheapest(nbytes, cluster).algorithm for nbytes in SIZES]
    changes = [k for k, (a, b) in enumerate(pairwise(chosen)) if a != b]
    assert (chosen[0], chosen[-1], len(changes)) == ("tree", "ring", 1)
    return float(SIZES[changes[0]])


@pytest.mark.technique("nccl", check=1)
@pytest.mark.parametrize("inside", ["nvlink", "pci"])
@pytest.mark.parametrize(("each", "fewest"), [(1, 8), (4, 4), (8, 2)])
def test_trees_are_taken_below_a_size_that_grows_with_the_hosts(each: int, fewest: int, inside: str) -> None:
    """With fewer GPUs a ring has so few steps that it is taken for small vectors, too, with the one or other protocol:
    4 hosts of one GPU never take a tree."""
    hosts = [number for number in (2, 4, 8, 16, 64, 256, 1024, 3072) if number >= fewest]
    found = [crossover(Cluster(number, each, 12.5e9, inside)) for number in hosts]
    assert found == sorted(found) and len(set(found)) == len(found)


@pytest.mark.technique("nccl", check=1)
@pytest.mark.parametrize("cluster", [Cluster(1, 8, 130e9), Cluster(2, 8, 80e9), Cluster(24, 4, 12e9, "pci")])
def test_the_least_of_the_table_is_taken(cluster: Cluster) -> None:
    for nbytes in SIZES:
        table = {(choice.algorithm, choice.protocol): choice.seconds for choice in predictions(nbytes, cluster)}
        assert len(table) == 6 and cheapest(nbytes, cluster).seconds == min(table.values())
    small, large = cheapest(8, cluster), cheapest(1e12, cluster)
    assert small.protocol == "LL" and (large.algorithm, large.protocol) == ("ring", "Simple")
    assert large.program(cluster) == ring(cluster.size)
    assert "LL128" in {cheapest(nbytes, cluster).protocol for nbytes in SIZES}


@pytest.mark.technique("nccl", check=1)
def test_times_of_the_table_by_hand() -> None:
    """Two hosts of 4 GPUs, 10 GB/s, a vector of 1 MB."""
    found = {(c.algorithm, c.protocol): c.seconds for c in predictions(1e6, Cluster(2, 4, 10e9))}
    assert found["ring", "Simple"] == pytest.approx(8.4e-6 + 12 * 3.4e-6 + 2 * 14e-6 + 1e6 * 14 / 8 / 10e9)
    assert found["ring", "LL"] == pytest.approx(6.6e-6 + 12 * 1.8 * 0.6e-6 + 2 * 2.7e-6 + 1e6 * 14 / 8 / 5e9)
    assert found["tree", "LL128"] == pytest.approx(14e-6 + 2 * (3 * 1.25e-6 + 8.5e-6) + 1e6 * 2 / (9.375e9 * 0.92))
    with pytest.raises(LaconicError, match="joined by nvlink or pci"):
        Cluster(2, 4, 1e9, "string")


@pytest.mark.parametrize(("size", "inside"), [(1, 1), (6, 1), (6, 2), (8, 4), (12, 3), (4, 4)])
def test_only_first_ranks_of_hosts_send_to_other_hosts(size: int, inside: int) -> None:
    program = nccl_tree(size, inside, blocks=3)
    sends = program.sends
    out = sends.source // inside != sends.destination // inside
    assert (sends.source[out] % inside == 0).all() and (sends.destination[out] % inside == 0).all()
    assert (np.abs(sends.source - sends.destination)[~out] == 1).all()
    for end in (sends.source, sends.destination):
        assert len(np.unique(sends.step * size + end)) == len(sends)
    assert_sums(program)
    with pytest.raises(ProgramError, match=f"{size} ranks are no hosts of {size + 1} each"):
        nccl_tree(size, size + 1)


@pytest.mark.technique("nccl", check=2)
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 33, 64])
def test_the_bus_bandwidth_of_a_ring_is_its_links(size: int) -> None:
    network = Network.flat(size, 8 * 12.5e9, 5e-6)
    programs = {"all_reduce": ring(size), "all_gather": ring_gather(size), "reduce_scatter": ring_scatter(size)}
    for relation, program in programs.items():
        found = bus_bytes_per_second(relation, 1e10, price(program, 1e10, network).seconds, size)
        assert found == pytest.approx(12.5e9, rel=0.01)
        small = bus_bytes_per_second(relation, 1e3, price(program, 1e3, network).seconds, size)
        assert small < 0.05 * 12.5e9
    assert bus_bytes_per_second("broadcast", 1e9, 0.5, size) == 2e9


@pytest.mark.technique("nccl", check=3)
def test_three_cycles_use_every_nvlink_of_a_dgx1_once() -> None:
    graph = dgx1(200e9)
    orders = channels(graph)
    assert len(orders) == 3 and all(sorted(order) == list(range(8)) for order in orders)
    used = np.zeros((8, 8), dtype=int)
    for order in [*orders, *(order[::-1] for order in orders)]:  # six directed rings
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            used[a, b] += 1
    links = np.zeros((8, 8), dtype=int)
    links[tuple(graph.ends.T)] = np.rint(graph.bits_per_second / 200e9).astype(int)
    assert (used == links).all() and links.sum() == 48 and (links.sum(axis=0) == 6).all()
    program = channel_rings(orders)
    assert_sums(program)
    found = bus_bytes_per_second("all_reduce", 1e9, price(program, 1e9, graph).seconds, 8)
    assert found == pytest.approx(6 * 25e9, rel=1e-9)


@pytest.mark.technique("nccl", check=3)
def test_as_many_channels_are_found_as_there_are() -> None:
    assert len(channels(torus([6], 1e9))) == 1
    assert len(channels(torus([3, 3], 1e9))) == 2  # Kotzig: a torus is two cycles
    assert len(most_cycles(1 - np.eye(7, dtype=np.int64))) == 3  # Walecki: a complete graph of 7 is three
    assert channels(dgx1().without([(0, 4), (1, 5), (2, 6)])) == []  # what one link joins has no cycle
    with pytest.raises(ProgramError, match="no ring leads over all ranks"):
        channel_rings([])
    uneven = Graph.of(4, [(0, 1, 3e9), (1, 2, 3e9), (2, 3, 3e9), (3, 0, 3e9), (0, 2, 1e9), (1, 3, 1e9)])
    assert channels(uneven) == [(0, 1, 2, 3)]  # at 3 Gbit/s, in place of three or fewer at 1
    two = channel_rings(channels(dgx1()), hosts=2)
    crossing = two.sends.source // 8 != two.sends.destination // 8
    assert len({(a, b) for a, b in two.sends.table[crossing][:, 1:3].tolist()}) <= 12

"""Graphs of data centres have the ranks, switches and links of their papers."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.network import datacenter_graphs as graphs
from laconic.network.graph import Graph


def degrees(graph: Graph) -> set[int]:
    """How many links leave a rank."""
    return set(np.bincount(graph.ends[:, 0])[: graph.size].tolist())


@pytest.mark.parametrize("ports", [2, 4, 6])
def test_a_fat_tree_has_switches_with_as_many_links_as_ports(ports: int) -> None:
    graph = graphs.fat_tree(ports, 1e9)
    assert graph.size == ports**3 // 4 and graph.nodes - graph.size == 5 * ports**2 // 4
    assert set(np.bincount(graph.ends[:, 0])[graph.size :].tolist()) == {ports} and degrees(graph) == {1}
    with pytest.raises(LaconicError, match="an even number of ports, not 3"):
        graphs.fat_tree(3, 1e9)


@pytest.mark.parametrize(("ports", "levels"), [(2, 2), (3, 2), (4, 2), (2, 3)])
def test_servers_of_a_bcube_switch_differ_in_one_digit(ports: int, levels: int) -> None:
    graph = graphs.bcube(ports, levels, 1e9)
    assert graph.size == ports**levels and graph.nodes - graph.size == levels * ports ** (levels - 1)
    assert degrees(graph) == {levels}
    digits = np.stack(np.unravel_index(np.arange(graph.size), (ports,) * levels))
    for switch in range(graph.size, graph.nodes):
        joined = graph.ends[graph.ends[:, 0] == switch, 1]
        assert len(joined) == ports
        assert [len(set(values)) for values in digits[:, joined].tolist()].count(ports) == 1


def test_a_torus_joins_neighbours_in_every_dimension() -> None:
    graph = graphs.torus([4, 3], 1e9)
    assert degrees(graph) == {4} and graph.nodes == graph.size == 12
    assert set(graph.ends[graph.ends[:, 0] == 0, 1].tolist()) == {1, 3, 4, 8}
    twice = graphs.torus([2, 3], 1e9)
    assert sorted(set(twice.bits_per_second.tolist())) == [1e9, 2e9]


def test_a_hamming_mesh_has_boards_between_switches_of_rows_and_columns() -> None:
    graph = graphs.hamming_mesh((2, 2), (3, 2), 1e9)
    assert graph.size == 24 and graph.nodes - graph.size == 6 + 4  # a switch for each column and row of ranks
    assert degrees(graph) == {4}
    assert set(graph.ends[graph.ends[:, 0] == 0, 1].tolist()) == {1, 6, 24, 28}
    assert (graph.routes([0, 0], [2, 11]).links >= 0).sum(axis=1).tolist() == [2, 3]

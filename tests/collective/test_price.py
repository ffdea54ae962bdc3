"""Prices of programs are those of the formulas on networks that these are for."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.collective.generators import make_program
from laconic.collective.price import price
from laconic.network.graph import Graph
from laconic.network.network_tree import Level, Network

S = 1e6


def test_a_ring_takes_what_its_formula_says() -> None:
    for size in (2, 3, 8, 33):
        network = Network.flat(size, 8e6, 1e-3)
        found = price(make_program("ring", size), S, network)
        assert found.seconds == pytest.approx(2 * (size - 1) * 1e-3 + 2 * (size - 1) / size * S / 1e6, rel=1e-9)
        assert found.sent_bytes == pytest.approx(2 * (size - 1) / size * S)
        assert found.busiest_seconds == pytest.approx(2 * (size - 1) / size * S / 1e6)


def test_a_graph_of_a_switch_is_the_network_of_a_switch() -> None:
    star = Graph.of(5, [(rank, 5, 8e6) for rank in range(5)], latency_seconds=0.5e-3)
    flat = Network.flat(5, 8e6, 1e-3)
    for name in ("ring", "binomial", "direct", "double_tree", "recursive_doubling"):
        program = make_program(name, 5)
        assert price(program, S, star).seconds == pytest.approx(price(program, S, flat).seconds)


def test_messages_that_share_a_link_share_its_rate() -> None:
    """Between two hosts of two a ring sends 1.5 vectors in each direction, a program for hosts one."""
    network = Network(4, (Level(1, 8e8), Level(2, 8e6)))
    near = price(make_program("ring", 4), S, network).seconds
    hosts = price(make_program("hierarchical", 4, 2), S, network).seconds
    assert near == pytest.approx(1.5 * S / 1e6, rel=0.02)
    assert hosts == pytest.approx(1.0 * S / 1e6, rel=0.02)


def test_ranks_wait_only_for_those_that_they_exchange_with() -> None:
    """In a chain the first block has reached the end while the last has not begun."""
    network = Network.flat(6, 8e6)
    chain = make_program("chain", 6)
    assert price(chain, S, network).seconds == pytest.approx(2 * (5 + 8 - 1) / 8 * S / 1e6)


def test_transfers_of_a_graph_take_the_shortest_way() -> None:
    ring = Graph.of(6, [(r, (r + 1) % 6, 8e6) for r in range(6)], latency_seconds=1e-3)
    routes = ring.routes([0, 0, 0], [1, 2, 3])
    assert (routes.links >= 0).sum(axis=1).tolist() == [1, 2, 3]
    np.testing.assert_allclose(routes.latency_seconds, [1e-3, 2e-3, 3e-3])
    broken = ring.without([(0, 1)])
    assert (broken.routes([0], [1]).links >= 0).sum() == 5

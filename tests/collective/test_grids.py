"""Grids: hosts, tori, BlueConnect and BML have exact sums, the stated steps and bytes, and the times of formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.collective.compose import relabel
from laconic.collective.factor import cheapest_grid, factorisations
from laconic.collective.grids import blueconnect, bml, direct, hierarchical, leader, torus
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.collective.rings import ring
from laconic.errors import ProgramError
from laconic.network import datacenter_graphs as graphs
from laconic.network.graph import Graph
from laconic.network.network_tree import Level, Network
from laconic.network.uniform_traffic import exchange_seconds
from tests.collective.on_virtual_workers import assert_sums
from tests.collective.test_programs import summed

S = 1e7
SPLITS = [(hosts, each) for each in range(1, 17) for hosts in range(1, 17) if hosts * each <= 16]


def crossing(program: Program, inside: int) -> np.ndarray:
    return program.sends.source // inside != program.sends.destination // inside


@pytest.mark.technique("hierarchical_allreduce", check=1)
@pytest.mark.parametrize(("hosts", "each"), SPLITS)
def test_each_host_sends_and_receives_as_little_as_a_member_of_a_ring_of_hosts(hosts: int, each: int) -> None:
    for program in (hierarchical(hosts * each, each), leader(hosts * each, each), leader(hosts * each, each, blocks=3)):
        out = crossing(program, each)
        shares = program.shares[program.sends.chunk][out]
        for end in (program.sends.source, program.sends.destination):
            carried = np.bincount(end[out] // each, shares, hosts)
            np.testing.assert_allclose(carried, 2 * (hosts - 1) / hosts)
        vectors = np.random.default_rng(hosts).integers(-99, 99, (hosts * each, program.chunks))
        assert (summed(program, vectors) == vectors.sum(axis=0)).all()
        if (hosts, each) in ((1, 1), (2, 3), (3, 2), (4, 2)):
            assert_sums(program)


@pytest.mark.technique("hierarchical_allreduce", check=2)
@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (2, 4), (4, 2), (3, 3), (4, 4), (8, 2)])
def test_hosts_take_the_formulas_time_in_fewer_slow_steps(hosts: int, each: int) -> None:
    """A: 2(g-1) a1 + 2(g-1)/g S/B1 + 2(m-1) a2 + 2(m-1)/m S/B2. B: chains of m b blocks, (m b + g - 2) steps each."""
    size, fast, slow, near, far = hosts * each, 1e9, 1e7, 3e-6, 50e-6
    network = Network(size, (Level(1, 8 * fast, near), Level(each, 8 * slow, far)))
    between = 2 * (hosts - 1) * far + 2 * (hosts - 1) / hosts * S / slow
    sharded = hierarchical(size, each)
    found = price(sharded, S, network).seconds
    assert found == pytest.approx(2 * (each - 1) * near + 2 * (each - 1) / each * S / fast + between, rel=1e-9)
    for blocks in (1, 4, 64):
        led = leader(size, each, blocks)
        pieces = hosts * blocks
        inside = 2 * (pieces + each - 2) * (near + S / (pieces * fast))
        assert price(led, S, network).seconds == pytest.approx(inside + between, rel=1e-9)
        assert len(np.unique(led.sends.step[crossing(led, each)])) == 2 * (hosts - 1)
    flat = ring(size)
    assert len(np.unique(sharded.sends.step[crossing(sharded, each)])) == 2 * (hosts - 1)
    assert len(np.unique(flat.sends.step[crossing(flat, each)])) == 2 * (size - 1)
    expected = 2 * (size - 1) * far + 2 * (size - 1) / size * S / slow
    assert price(flat, S, network).seconds == pytest.approx(expected, rel=1e-9)


def test_a_port_for_each_rank_makes_shards_faster_than_leaders() -> None:
    """Between hosts 2(m-1)/m S/(g B) in place of 2(m-1)/m S/B."""
    network = graphs.grid_of_switches([4, 3], [8e12, 8e6])
    found = [price(make(12, 4), S, network).seconds for make in (hierarchical, leader)]
    assert found[0] == pytest.approx(2 * 2 / 3 * S / 4e6, rel=1e-5)
    assert found[1] == pytest.approx(2 * 2 / 3 * S / 1e6, rel=1e-5)


@pytest.mark.technique("torus2d_allreduce", check=1)
@pytest.mark.parametrize("across", [2, 3, 4])
@pytest.mark.parametrize("down", [2, 3, 4])
def test_a_torus_has_the_steps_of_its_sides(across: int, down: int) -> None:
    size = across * down
    for ways in (1, 2, 4):
        program = torus(size, (across, down), ways)
        assert program.steps == 2 * (across + down - 2)
        np.testing.assert_allclose(program.sent_shares, 2 * (size - 1) / size)
        vectors = np.random.default_rng(size).integers(-99, 99, (size, program.chunks))
        assert (summed(program, vectors) == vectors.sum(axis=0)).all()
        if across < down:
            assert_sums(program)


def loads(program: Program, graph: Graph) -> np.ndarray:
    """The bytes on every link of a graph."""
    sends = program.sends
    return graph.routes(sends.source, sends.destination).load_bytes(program.shares[sends.chunk] * S, len(graph.ends))


@pytest.mark.technique("torus2d_allreduce", check=2)
@pytest.mark.parametrize("side", [3, 4, 5])
def test_two_halves_use_all_ports_of_a_square_torus(side: int) -> None:
    """One half goes along rows first, the other along columns: every rank sends as much over its link to the right as
    over that downwards, and receives as much over the other two; with both directions all eight carry the same."""
    size, graph = side * side, graphs.torus([side, side], 8e6)
    pairs = set(map(tuple, graph.ends.tolist()))
    whole = price(torus(size, (side, side)), S, graph).seconds
    assert whole == pytest.approx(2 * (size - 1) / size * S / 1e6, rel=1e-9)
    for ways in (1, 2, 4):
        program = torus(size, (side, side), ways)
        assert set(zip(program.sends.source.tolist(), program.sends.destination.tolist(), strict=True)) <= pairs
        assert price(program, S, graph).seconds == pytest.approx(whole / ways, rel=1e-9)
        carried = loads(program, graph)
        used = carried > 0
        assert used.sum() == size * {1: 2, 2: 2, 4: 4}[ways]
        if ways > 1:
            np.testing.assert_allclose(carried[used], 2 * (size - 1) / size * S / ways)
            ends = np.concatenate([graph.ends[used, 0], graph.ends[used, 1]])
            assert (np.bincount(ends) == 2 * ways).all()  # every rank's ports, as sender or receiver


@pytest.mark.long
@pytest.mark.technique("torus2d_allreduce", check=3)
def test_a_torus_of_1024_has_124_steps() -> None:
    assert torus(1024, (32, 32)).steps == 124 and ring(1024).steps == 2046


@pytest.mark.technique("blueconnect", check=1)
@pytest.mark.parametrize("sides", [(2, 3), (3, 2), (4, 2), (2, 2, 3), (3, 3), (7,)])
def test_rings_in_each_dimension_send_a_rings_bytes(sides: tuple[int, ...]) -> None:
    size = math.prod(sides)
    program = blueconnect(size, sides=sides)
    assert program.steps == 2 * sum(side - 1 for side in sides)
    np.testing.assert_allclose(program.sent_shares, 2 * (size - 1) / size)
    assert_sums(program)
    if len(sides) == 1:
        assert program == ring(size)


def blueconnect_formula(
    sides: tuple[int, ...], rates: tuple[float, ...], latency: float, order: tuple[int, ...]
) -> float:
    """Σ_d 2(p_d - 1) α + 2(p_d - 1)/p_d (S / what the dimensions before have left) / B_d."""
    seconds, left = 0.0, S
    for d in order:
        seconds += 2 * (sides[d] - 1) * latency + 2 * (sides[d] - 1) / sides[d] * left / rates[d]
        left /= sides[d]
    return seconds


@pytest.mark.technique("blueconnect", check=2)
@pytest.mark.parametrize("sides", [(4, 4), (2, 3), (3, 4), (2, 2, 3)])
def test_the_fast_dimension_comes_first(sides: tuple[int, ...]) -> None:
    size, latency = math.prod(sides), 1e-5
    rates = tuple(1e8 / 10**d for d in range(len(sides)))
    network = graphs.grid_of_switches(sides, [8 * rate for rate in rates], latency / 2)
    first, last = tuple(range(len(sides))), tuple(range(len(sides)))[::-1]
    found = [price(blueconnect(size, sides=sides, order=order), S, network).seconds for order in (first, last)]
    expected = [blueconnect_formula(sides, rates, latency, order) for order in (first, last)]
    assert found == pytest.approx(expected, rel=1e-9) and found[0] < found[1]
    units = [math.prod(sides[:d]) for d in range(len(sides))]
    best = cheapest_grid(S, network, units, most=len(sides))
    assert best == blueconnect(size, sides=sides)
    assert price(cheapest_grid(S, network), S, network).seconds <= found[0]  # rings of 4 as two of 2 have fewer steps


@pytest.mark.technique("blueconnect", check=2)
def test_with_equal_fabrics_all_orders_tie_in_bandwidth() -> None:
    sides = (2, 3, 4)
    network = graphs.grid_of_switches(sides, [8e6] * 3)
    orders = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)]
    found = [price(blueconnect(24, sides=sides, order=order), S, network).seconds for order in orders]
    assert found == pytest.approx([2 * 23 / 24 * S / 1e6] * 4, rel=1e-9)


@pytest.mark.technique("blueconnect", check=2)
def test_grids_that_a_network_allows_end_at_its_units() -> None:
    assert set(factorisations(12, most=2)) == {(12,), (2, 6), (6, 2), (3, 4), (4, 3)}
    assert set(factorisations(12, units=[4])) == {(4, 3), (2, 2, 3)}
    assert list(factorisations(1)) == [(1,)]
    network = Network(12, (Level(1, 8e8, 1e-5), Level(4, 8e6, 1e-4)))
    assert cheapest_grid(S, network, units=[4], most=2) == blueconnect(12, sides=(4, 3))
    with pytest.raises(ProgramError, match="no grid of 12 ranks with at most 1 dimensions has units of"):
        cheapest_grid(S, network, units=[4], most=1)


@pytest.mark.technique("blueconnect", check=3)
def test_192_ranks_of_48_hosts_are_three_times_faster_than_a_ring_across_hosts() -> None:
    """NVLink with 150 GB/s inside a host, 100 Gbit/s outside; the ring goes to another host with every hop."""
    network = Network(192, (Level(1, 8 * 150e9, 3e-6), Level(4, 100e9, 5e-6)))
    order = [host * 4 + place for place in range(4) for host in range(48)]
    crossing_ring = relabel(ring(192), order)
    assert crossing(crossing_ring, 4).all()
    for nbytes in (1e6, 1e8):
        ours = price(blueconnect(192, sides=(4, 48)), nbytes, network).seconds
        assert price(crossing_ring, nbytes, network).seconds >= 3 * ours


@pytest.mark.technique("bml", check=1)
@pytest.mark.parametrize(("ports", "levels"), [(2, 2), (3, 2), (2, 3), (3, 3)])
def test_all_ports_of_bcube_are_loaded_alike(ports: int, levels: int) -> None:
    size = ports**levels
    program, graph = bml(size, levels), graphs.bcube(ports, levels, 8e6)
    assert program.steps == 2 * levels
    np.testing.assert_allclose(program.sent_shares, 2 * (size - 1) / size)
    assert_sums(program)
    sends = program.sends
    for step in range(program.steps):
        here = sends.step == step
        routes = graph.routes(sends.source[here], sends.destination[here])
        carried = routes.load_bytes(program.shares[sends.chunk[here]], len(graph.ends))
        assert (carried > 0).all()
        np.testing.assert_allclose(carried, carried[0])
    assert price(program, S, graph).seconds == pytest.approx(2 * (size - 1) / (size * levels) * S / 1e6, rel=1e-9)


@pytest.mark.technique("bml", check=2)
@pytest.mark.parametrize(("ports", "levels"), [(4, 2), (3, 2), (2, 3), (3, 3)])
def test_bcube_takes_a_part_of_servers_on_a_fat_tree_with_a_part_of_the_switches(ports: int, levels: int) -> None:
    """With a server on every worker, each sends a part of its gradient to all and gets the sums: two exchanges. On a
    fat-tree a rank's one port decides, as on a single switch."""
    size = ports**levels
    ours = price(bml(size, levels), S, graphs.bcube(ports, levels, 8e6)).seconds
    servers = price(direct(size), S, graphs.star(size, 8e6)).seconds
    assert ours / servers == pytest.approx(1 / levels, rel=0.02)
    if (ports, levels) == (4, 2):
        tree = graphs.fat_tree(ports, 8e6)
        assert tree.size == size and 2 * exchange_seconds(tree, S) == pytest.approx(servers, rel=1e-9)
        switches = [graph.nodes - size for graph in (graphs.bcube(ports, levels, 8e6), tree)]
        assert switches == [levels * ports ** (levels - 1), 5 * ports ** (levels - 1)]


@pytest.mark.technique("bml", check=3)
def test_nine_servers_with_two_ports_take_half_of_a_rings_time_over_one() -> None:
    ours = price(bml(9), S, graphs.bcube(3, 2, 8e6)).seconds
    assert ours == pytest.approx(0.5 * price(ring(9), S, graphs.star(9, 8e6)).seconds, rel=1e-9)

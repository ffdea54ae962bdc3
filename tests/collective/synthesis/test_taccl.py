"""Collectives in three stages: routes, an order, messages; each does what it should, within the sketch."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest

from laconic.collective.compose import spread_after_sum
from laconic.collective.generators import make_program
from laconic.collective.price import price
from laconic.collective.relation import all_gather, broadcast
from laconic.collective.synthesis.contiguity import contiguity
from laconic.collective.synthesis.ordering import ordering
from laconic.collective.synthesis.routing import Routes, RoutingModel
from laconic.collective.synthesis.sketch import Sketch, Switched, hosts_sketch
from laconic.collective.synthesis.symmetry import rotations
from laconic.collective.synthesis.taccl import Scheduled, taccl
from laconic.collective.synthesis.timetable import timetable
from laconic.collective.synthesis.wiring import Wiring, wiring
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.known_graphs import switched_hosts
from tests.collective.test_programs import summed

KB, MB = 1e3, 1e6


def check_times(found: Scheduled, chunk_bytes: float) -> None:
    """See, send by send, that chunks are there, ways are free and shared links have no more than their rate."""
    wires, routes, times = found.wiring, found.routes, found.times
    for send, parent in enumerate(routes.parent.tolist()):
        assert parent < 0 or times.start[send] >= times.end[parent] - 1e-12
        assert parent < 0 or wires.ends[routes.sends[parent, 1], 1] == wires.ends[routes.sends[send, 1], 0]
    for way in range(len(wires.ends)):
        sends = np.flatnonzero(routes.sends[:, 1] == way)
        messages = {int(times.message[k]): (times.start[k], times.end[k]) for k in sends}
        ordered = sorted(messages.values())
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(ordered))
        for number, (start, end) in messages.items():
            chunks = int((times.message[sends] == number).sum())
            assert end - start >= wires.latency_seconds[way] + chunks * chunk_bytes / wires.rates[way] - 1e-12
    for members, rate in wires.limits:
        sends = np.flatnonzero(np.isin(routes.sends[:, 1], members))
        if len(sends):
            span = times.end[sends].max() - times.start[sends].min()
            assert len(sends) * chunk_bytes / rate <= span + 1e-12


@pytest.mark.long
@pytest.mark.technique("taccl", check=1)
@pytest.mark.parametrize("nics", [1, 2, 4])
def test_two_hosts_of_four_are_within_their_bound(nics: int) -> None:
    sketch = Sketch(hosts_sketch(2, 4).ways, ((4, 8), (2 if nics == 2 else 1, 4)))
    for nbytes, nic in ((KB, 100e9), (MB, 100e9), (100 * MB, 100e9), (MB, 25e9), (100 * MB, 25e9)):
        graph = switched_hosts(2, 4, nics, nic_bits_per_second=nic)
        found = taccl(graph, all_gather(8, 8), nbytes, sketch)
        assert found.routes.is_optimal
        assert found.bound_seconds * (1 - 1e-6) <= found.seconds <= 1.3 * found.bound_seconds, (nbytes, nic)
        check_times(found, nbytes / 8)


def test_hosts_of_four_with_one_sender_for_each_nic_are_within_their_bound() -> None:
    """A megabyte, where latency and bytes weigh the same, takes 1.44 of the bound, and no more."""
    graph, sketch = switched_hosts(2, 4, 2), hosts_sketch(2, 4, senders=[0, 2])
    for nbytes, most in ((KB, 1.3), (MB, 1.45), (100 * MB, 1.3)):
        found = taccl(graph, all_gather(8, 8), nbytes, sketch)
        assert found.bound_seconds * (1 - 1e-6) <= found.seconds <= most * found.bound_seconds
        check_times(found, nbytes / 8)


def test_the_bound_is_at_least_what_a_cut_says() -> None:
    """Four chunks cross to each host by its only NIC, and the last has a hop to go or has had one."""
    graph = switched_hosts(2, 4, 1)
    found = taccl(graph, all_gather(8, 8), 100 * MB, hosts_sketch(2, 4))
    assert found.bound_seconds >= 0.999 * (4 * 12.5e6 / 12.5e9)


@pytest.mark.technique("taccl", check=2)
def test_symmetry_shrinks_the_choices_by_the_order_of_the_group() -> None:
    graph = switched_hosts(2, 4, 4)
    sketch = hosts_sketch(2, 4)
    ways, relation = wiring(graph, sketch.ways), all_gather(8, 8)
    for turns, order in (((), 1), (((4, 8),), 2), (((1, 4),), 4), (((4, 8), (1, 4)), 8)):
        group = rotations(ways, relation, turns)
        assert len(group) == order
        model = RoutingModel(ways, relation, 1e6 / 8, group)
        assert model.model.choices * order == RoutingModel(ways, relation, 1e6 / 8, group[:1]).model.choices
        found = taccl(graph, relation, MB, Sketch(sketch.ways, turns))
        assert found.program.relation.same_as(relation)
        assert found.seconds <= 1.3 * found.bound_seconds


@pytest.mark.technique("taccl", check=2)
def test_solutions_are_the_same_under_their_symmetry() -> None:
    graph = switched_hosts(2, 4, 4)
    found = taccl(graph, all_gather(8, 8), MB, hosts_sketch(2, 4))
    sends = {tuple(row) for row in found.routes.sends.tolist()}
    for g in rotations(found.wiring, found.program.relation, ((4, 8), (1, 4))):
        assert {(int(g.chunks[c]), int(g.ways[w])) for c, w in sends} == sends


@pytest.mark.long
@pytest.mark.technique("taccl", check=2)
@pytest.mark.parametrize("nics", [1, 8])
@pytest.mark.parametrize("nbytes", [KB, 100 * MB])
def test_two_hosts_of_eight_are_solved_in_two_minutes(nics: int, nbytes: float) -> None:
    """The solvers have 120 seconds in all, and end before with a proof."""
    graph = switched_hosts(2, 8, nics)
    found = taccl(graph, all_gather(16, 16), nbytes, hosts_sketch(2, 8), seconds=120)
    assert found.routes.is_optimal and found.routes.choices == 120
    assert found.bound_seconds * (1 - 1e-6) <= found.seconds <= 1.3 * found.bound_seconds
    check_times(found, nbytes / 16)


@pytest.mark.long
@pytest.mark.technique("taccl", check=3)
@pytest.mark.parametrize("nics", [1, 8])
def test_an_all_reduce_is_faster_than_a_ring_and_two_trees(nics: int) -> None:
    """By the same prices, on hosts of eight with slow NICs."""
    graph = switched_hosts(2, 8, nics)
    gains = []
    for nbytes in (KB, MB, 100 * MB):
        gather = taccl(graph, all_gather(16, 16), nbytes, hosts_sketch(2, 8)).program
        whole = spread_after_sum(gather, "taccl all-reduce")
        others = min(price(make_program(name, 16), nbytes, graph).seconds for name in ("ring", "double_tree"))
        gains.append(others / price(whole, nbytes, graph).seconds)
        vectors = np.random.default_rng(nics).integers(-99, 99, (16, whole.chunks))
        np.testing.assert_array_equal(summed(whole, vectors), np.broadcast_to(vectors.sum(axis=0), vectors.shape))
    assert min(gains) >= 1 / 1.05 and max(gains) >= 1.5


def test_more_chunks_are_joined_where_latency_counts() -> None:
    graph = switched_hosts(2, 4, 4)
    small = taccl(graph, all_gather(8, 8), KB, hosts_sketch(2, 4, chunks=2))
    assert small.program.chunks == 16 and small.seconds <= 1.05 * small.bound_seconds
    slow = small.wiring.number[0, 4]
    together = {int(small.times.message[k]) for k in np.flatnonzero(small.routes.sends[:, 1] == slow)}
    assert len(together) == 1


def test_policies_of_switches_use_many_or_few_connections() -> None:
    """Among four ranks behind a switch, where bytes alone count, a ring is as fast as sending to all."""
    graph = switched_hosts(1, 4, 4, inner_latency_seconds=0.0)
    near = hosts_sketch(1, 4).ways

    def connections(policy: str) -> int:
        sketch = Sketch(near, ((1, 4),), 1, (Switched((0, 1, 2, 3), policy),))  # type: ignore[arg-type]
        return len(np.unique(taccl(graph, all_gather(4, 4), 100 * MB, sketch).routes.sends[:, 1]))

    assert (connections("uc-max"), connections("uc-min")) == (12, 4)
    with pytest.raises(LaconicError, match="by uc-max or uc-min, not 'all'"):
        connections("all")


def test_only_the_ways_of_a_sketch_are_used() -> None:
    graph = switched_hosts(2, 4, 2)
    sketch = hosts_sketch(2, 4, senders=[1])
    found = taccl(graph, all_gather(8, 8), MB, sketch).program
    used = set(zip(found.sends.source.tolist(), found.sends.destination.tolist(), strict=True))
    assert used <= sketch.ways and {(a, b) for a, b in used if a // 4 != b // 4} == {(1, 5), (5, 1)}


def test_sketches_that_cannot_be_are_refused() -> None:
    graph = switched_hosts(2, 4, 4)
    only_there = frozenset({(0, 1), (1, 0), *((a, b) for a in (2, 3) for b in (2, 3) if a != b)})
    with pytest.raises(LaconicError, match="leaves no routes"):
        taccl(graph, all_gather(8, 8), MB, Sketch(only_there))
    with pytest.raises(LaconicError, match="turning groups of 4 ranks by 1 changes the links"):
        taccl(graph, all_gather(8, 8), MB, Sketch(hosts_sketch(2, 4, [0]).ways, ((1, 4),)))
    with pytest.raises(LaconicError, match="8 ranks are no groups of 3"):
        taccl(graph, all_gather(8, 8), MB, Sketch(hosts_sketch(2, 4).ways, ((1, 3),)))
    line = Graph.of(3, [(0, 1, 8e9), (1, 2, 8e9)])
    with pytest.raises(LaconicError, match="no way leads from rank 0 to rank 2 without another rank"):
        wiring(line, [(0, 2)])


def line_of(size: int, latency: float) -> Wiring:
    return wiring(Graph.of(size, [(r, r + 1, 8e6) for r in range(size - 1)], latency))


def sends_of(ways: Wiring, rows: list[tuple[int, int, int, int]]) -> Routes:
    """Routes from rows (chunk, from, to, parent)."""
    sends = np.array([(chunk, ways.number[a, b]) for chunk, a, b, _ in rows])
    return Routes(sends, np.array([row[3] for row in rows]), np.arange(len(rows)), 0, True)


def test_the_chunk_with_the_longest_way_to_go_is_first() -> None:
    """Chunk 1 goes on from rank 1 to 3, chunk 2 to 2, chunk 0 stays at 1; chunk 3 has come from rank 4's side."""
    ways = line_of(4, 0.0)
    rows = [(0, 0, 1, -1), (1, 0, 1, -1), (1, 1, 2, 1), (1, 2, 3, 2), (2, 0, 1, -1), (2, 1, 2, 4)]
    order = ordering(ways, sends_of(ways, rows), 1e6)
    assert order.ways[ways.number[0, 1]] == [1, 4, 0]
    equal = [(0, 2, 1, -1), (0, 1, 0, 0), (1, 1, 0, -1), (2, 1, 0, -1)]
    assert ordering(ways, sends_of(ways, equal), 1e6).ways[ways.number[1, 0]] == [2, 3, 1]


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_joined_as_well_as_can_be(seed: int) -> None:
    """Against all ways to join, for chunks from rank 0 that end at random ranks of a line."""
    rng = np.random.default_rng(seed)
    latency = float(rng.choice([0.2, 1.0, 4.0]))
    ways = line_of(4, latency)
    rows: list[tuple[int, int, int, int]] = []
    for chunk, goal in enumerate(rng.integers(1, 4, 4).tolist()):
        for hop in range(goal):
            rows.append((chunk, hop, hop + 1, len(rows) - 1 if hop else -1))
    routes = sends_of(ways, rows)
    order = ordering(ways, routes, 1e6)
    later = [send for sends in order.ways.values() for send in sends[1:]]
    best = np.inf
    for choice in product([False, True], repeat=len(later)):
        joined = np.zeros(len(rows), dtype=bool)
        joined[later] = choice
        table = timetable(ways, routes, order, joined, 1e6)
        best = min(best, np.inf if table is None else table.seconds)
    assert contiguity(ways, routes, order, 1e6, 30).seconds == pytest.approx(best, rel=2e-3)


def test_joined_sends_that_wait_for_each_other_have_no_timetable() -> None:
    """Rank 0 sends its own chunk with one that it gets from rank 1 only after its own is there."""
    ways = line_of(2, 1.0)
    routes = sends_of(ways, [(0, 0, 1, -1), (1, 1, 0, 0), (2, 0, 1, 1)])
    order = ordering(ways, routes, 1e6)
    assert timetable(ways, routes, order, np.array([False, False, False]), 1e6).seconds == pytest.approx(6.0)  # type: ignore[union-attr]
    assert timetable(ways, routes, order, np.array([False, False, True]), 1e6) is None


def test_a_broadcast_is_found_too() -> None:
    graph = switched_hosts(2, 4, 4)
    found = taccl(graph, broadcast(8, 1), 10 * MB, Sketch(hosts_sketch(2, 4).ways, chunks=2))
    check_times(found, 5 * MB)
    assert found.bound_seconds <= found.seconds

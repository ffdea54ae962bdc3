"""Schedules in steps and rounds exist exactly where they should, and are what they say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from laconic.collective.compose import beside, relabel, then
from laconic.collective.price import price
from laconic.collective.relation import Relation, all_gather, all_reduce, all_to_all, broadcast, gather, scatter
from laconic.collective.rings import ring_gather
from laconic.collective.synthesis.bounds import bounds
from laconic.collective.synthesis.sccl import Answer, Question, Schedule, decide, frontier
from laconic.collective.synthesis.step_model import StepModel, useful
from laconic.collective.synthesis.symmetry import symmetries
from laconic.collective.synthesis.wiring import wiring
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.known_graphs import dgx1, switched_hosts
from tests.collective.test_programs import summed

LINK = 200e9 / 8
DOUBLE, SINGLE = [0, 3, 2, 1, 5, 6, 7, 4], [0, 1, 3, 7, 5, 4, 6, 2]


def ask(graph: Graph, relation: Relation, chunks: int, steps: int, rounds: int) -> Answer:
    return decide(Question(graph, relation, chunks, steps, rounds))


def on_dgx1(chunks: int, steps: int, rounds: int) -> Answer:
    return ask(dgx1(latency_seconds=0.7e-6), all_gather(8, 8), chunks, steps, rounds)


def check_rounds(graph: Graph, schedule: Schedule, unit: float) -> None:
    """Count what each link carries in each step, from the sends and the ways of the graph alone."""
    sends = schedule.program.sends
    loads: Counter[tuple[int, int]] = Counter()
    for step, source, destination in zip(sends.step.tolist(), sends.source, sends.destination, strict=True):
        way = graph.routes([source], [destination]).links[0]
        assert all(graph.ends[link, 1] >= graph.size for link in way[:-1])
        loads.update((step, int(link)) for link in way)
    for (step, link), count in loads.items():
        assert count <= graph.capacities[link] / unit * schedule.step_rounds[step] + 1e-6
    assert schedule.rounds == sum(schedule.step_rounds) and len(schedule.step_rounds) == schedule.steps


def uneven(seed: int, size: int = 6) -> Graph:
    """A ring with some chords, of links of one or two units."""
    rng = np.random.default_rng(seed)
    links = [(r, (r + 1) % size, 1e9 * rng.integers(1, 3)) for r in range(size)]
    links += [(r, (r + 2) % size, 1e9 * rng.integers(1, 3)) for r in range(size) if rng.random() < 0.5]
    return Graph.of(size, links)


@pytest.mark.technique("sccl", check=1)
def test_the_table_of_dgx1() -> None:
    fast = on_dgx1(1, 2, 2).schedule
    assert fast is not None and fast.is_latency_optimal and not fast.is_bandwidth_optimal
    assert all(on_dgx1(1, 1, rounds).is_proved_impossible for rounds in range(1, 12))
    assert on_dgx1(2, 2, 2).is_proved_impossible
    assert on_dgx1(3, 2, 4).is_proved_impossible  # which no bound says, nor the lack of a symmetric schedule
    between = on_dgx1(2, 2, 3).schedule
    assert between is not None and between.rounds == 3 and between.program.steps == 2


@pytest.mark.technique("sccl", check=1)
def test_the_solver_proves_what_is_impossible_without_bounds() -> None:
    ways = wiring(dgx1(latency_seconds=0.7e-6))
    for chunks, steps, rounds in ((1, 1, 1), (1, 1, 9), (2, 2, 2), (3, 2, 4)):
        relation = all_gather(8, 8 * chunks)
        model = StepModel(ways, relation, steps, rounds, LINK, symmetries(ways, relation)[:1])
        assert model.solve(60).is_infeasible, (chunks, steps, rounds)


@pytest.mark.long
@pytest.mark.technique("sccl", check=1)
def test_six_chunks_in_three_steps_and_seven_rounds() -> None:
    """A question is given 60 seconds; the bound is 7/6 rounds for each chunk."""
    found = on_dgx1(6, 3, 7).schedule
    assert found is not None and found.rounds == 7 and found.program.steps == 3 and found.program.chunks == 48
    assert found.least_rounds_per_chunk == pytest.approx(7 / 6) and found.is_bandwidth_optimal
    check_rounds(dgx1(latency_seconds=0.7e-6), found, LINK)


@pytest.mark.technique("sccl", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_schedules_keep_to_rounds_and_add_up_backwards(seed: int) -> None:
    graph = uneven(seed)
    found = list(frontier(graph, all_gather(6, 6), extra_rounds=2, most_chunks=3, seconds=10))
    assert found
    for schedule in found:
        check_rounds(graph, schedule, 1e9 / 8)
        backwards = schedule.reversed()
        assert backwards.program.relation.name == "reduce_scatter"
        check_rounds(graph, backwards, 1e9 / 8)
        whole = then(backwards.program, schedule.program, relation=all_reduce(6, schedule.program.chunks))
        vectors = np.random.default_rng(seed).integers(-999, 999, (6, whole.chunks))
        np.testing.assert_array_equal(summed(whole, vectors), np.broadcast_to(vectors.sum(axis=0), vectors.shape))


@pytest.mark.technique("sccl", check=2)
def test_schedules_of_dgx1_keep_to_rounds() -> None:
    for question in ((1, 2, 2), (2, 2, 3)):
        found = on_dgx1(*question).schedule
        assert found is not None
        check_rounds(dgx1(latency_seconds=0.7e-6), found, LINK)


@pytest.mark.long
@pytest.mark.technique("sccl", check=3)
def test_fewer_steps_than_six_rings_at_the_same_bandwidth() -> None:
    schedule = on_dgx1(6, 3, 7).schedule
    assert schedule is not None
    orders = [order for ring, times in ((DOUBLE, 2), (SINGLE, 1)) for order in (ring, ring[::-1]) * times]
    six = beside([relabel(ring_gather(8), order) for order in orders], [1.0] * 6, "six rings")
    for graph in (dgx1(latency_seconds=0.0), dgx1(25e9, 0.0)):
        ours, rings = (price(program, 1e8, graph).seconds for program in (schedule.program, six))
        assert ours == pytest.approx(rings) == pytest.approx(7 / 6 * 1e8 / 8 / graph.capacities.min())
    ours, rings = (price(program, 0.0, dgx1(latency_seconds=1e-6)).seconds for program in (schedule.program, six))
    assert ours / rings == pytest.approx(3 / 7)


@pytest.mark.long
def test_the_frontier_of_dgx1() -> None:
    said: list[str] = []
    found = list(frontier(dgx1(latency_seconds=0.7e-6), all_gather(8, 8), progress=said.append))
    assert [(s.chunks, s.steps, s.rounds) for s in found] == [(2, 2, 3), (6, 3, 7)]
    assert found[0].is_latency_optimal and found[1].is_bandwidth_optimal
    assert said[-2:] == ["2 chunks, 2 steps, 3 rounds: yes", "6 chunks, 3 steps, 7 rounds: yes"]


def test_the_frontier_of_a_ring_is_one_schedule() -> None:
    """On five ranks both directions reach all others in two steps, with all links busy."""
    ring = Graph.of(5, [(r, (r + 1) % 5, 8e9) for r in range(5)])
    assert [(s.chunks, s.steps, s.rounds) for s in frontier(ring, all_gather(5, 5))] == [(1, 2, 2)]


@pytest.mark.parametrize("make", [broadcast, scatter, gather, all_to_all])
def test_other_collectives_that_copy(make: object) -> None:
    """A relation in which most ranks only pass a chunk on."""
    graph = Graph.of(4, [(0, 1, 8e9), (1, 2, 8e9), (2, 3, 16e9), (3, 0, 8e9)])
    relation = {broadcast: broadcast(4, 1), all_to_all: all_to_all(4)}.get(make) or make(4, 4)  # type: ignore[operator]
    found = list(frontier(graph, relation, extra_rounds=3, most_chunks=2, seconds=10))
    assert found and found[0].steps == 2
    for schedule in found:
        check_rounds(graph, schedule, 1e9)
        assert schedule.rounds / schedule.chunks >= schedule.least_rounds_per_chunk - 1e-9


def test_ways_through_a_switch_share_its_ports() -> None:
    """Three chunks must enter each of four ranks by one link."""
    star = Graph.of(4, [(rank, 4, 8e9) for rank in range(4)])
    assert ask(star, all_gather(4, 4), 1, 1, 2).is_proved_impossible
    found = ask(star, all_gather(4, 4), 1, 1, 3).schedule
    assert found is not None and found.is_bandwidth_optimal
    check_rounds(star, found, 1e9)


def test_a_question_that_symmetry_cannot_answer_is_asked_without() -> None:
    """A directed circle of four with one chord: no turn keeps it, and answers are right all the same."""
    circle = Graph.of(4, [(r, (r + 1) % 4, 8e9) for r in range(4)], duplex=False)
    assert len(symmetries(wiring(circle), all_gather(4, 4))) == 4
    assert ask(circle, all_gather(4, 4), 1, 3, 3).schedule is not None
    chord = Graph.of(4, [*((r, (r + 1) % 4, 8e9) for r in range(4)), (0, 2, 8e9)], duplex=False)
    assert len(symmetries(wiring(chord), all_gather(4, 4))) == 1
    assert ask(chord, all_gather(4, 4), 1, 2, 9).is_proved_impossible
    assert ask(chord, all_gather(4, 4), 1, 3, 3).schedule is not None


def test_symmetries_shrink_the_choices_by_their_number() -> None:
    for graph, order in (
        (dgx1(latency_seconds=0.7e-6), 4),
        (Graph.of(6, [(r, (r + 1) % 6, 8e9) for r in range(6)]), 6),
    ):
        ways, relation = wiring(graph), all_gather(graph.size, 2 * graph.size)
        group = symmetries(ways, relation)
        assert len(group) == order
        assert all((g.ranks != np.arange(graph.size)).all() for g in group[1:])
        all_choices, fewer = (
            StepModel(ways, relation, 3, 3, graph.capacities.min(), part).model.choices for part in (group[:1], group)
        )
        assert all_choices == order * fewer > 0


def test_bounds_are_those_of_the_narrowest_cut() -> None:
    """Two triangles that one thin link joins: three chunks must pass it, which no single rank's links tell."""
    triangles = [(a + k, b + k, 8e9) for k in (0, 3) for a, b in ((0, 1), (1, 2), (2, 0))]
    graph = Graph.of(6, [*triangles, (0, 3, 2e9)])
    found = bounds(graph, all_gather(6, 6), wiring(graph))
    assert found.steps == 3 and found.vectors_per_second == pytest.approx(0.25e9 / (3 / 6))
    larger = switched_hosts(2, 8, 1)
    assert larger.nodes > 16
    narrow = bounds(larger, all_gather(16, 16), wiring(larger))
    assert narrow.steps == 1 and narrow.vectors_per_second == pytest.approx(12.5e9 / (8 / 16))
    assert narrow.seconds(1e3, 1e-6) == pytest.approx(1e-6)
    assert narrow.seconds(1e9, 1e-6) == pytest.approx(0.04)


def test_what_cannot_be_reached_is_said() -> None:
    apart = Graph.of(4, [(0, 1, 8e9), (2, 3, 8e9)])
    with pytest.raises(LaconicError, match="no way leads to some rank that should get chunk 0"):
        ask(apart, all_gather(4, 4), 1, 2, 2)


def test_sends_of_which_nothing_comes_are_left_out() -> None:
    to_one = scatter(3, 3)
    rows = [(0, 0, 1, 1, 0), (0, 0, 2, 1, 0), (0, 0, 1, 2, 0), (1, 1, 2, 2, 0)]
    assert useful(to_one, rows) == [(0, 0, 1, 1, 0), (0, 0, 1, 2, 0), (1, 1, 2, 2, 0)]

"""Blink's trees: as fast as the smallest cut for any GPUs of a machine, and exact sums along them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import laconic
from laconic.collective.generators import make_program
from laconic.collective.packing.blink import (
    Packing,
    blink,
    blink_all_reduce,
    blink_broadcast,
    machines_all_reduce,
    over_both,
)
from laconic.collective.packing.cheapest import cheapest_tree
from laconic.collective.packing.chunk_size import tune_blocks
from laconic.collective.price import price
from laconic.collective.program import Program
from laconic.errors import LaconicError
from laconic.network.graph import Graph
from laconic.network.known_graphs import dgx1
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete

LINK = 200e9
S = 1e9
SUBSETS = [some for k in range(2, 9) for some in itertools.combinations(range(8), k)]


def narrowest(graph: Graph, root: int) -> float:
    """Return the smallest rate that leaves a set with the root, of all such sets."""
    others = [rank for rank in range(graph.size) if rank != root]
    sets = [{root, *some} for k in range(len(others)) for some in itertools.combinations(others, k)]
    inside = np.array([[a in some and b not in some for a, b in graph.ends.tolist()] for some in sets])
    return float((inside * graph.bits_per_second).sum(axis=1).min()) if len(graph.ends) else 0.0


def check(packing: Packing, graph: Graph) -> None:
    """Trees span, links have room, and the rate is at least 95 % of what the smallest cut allows."""
    load: dict[tuple[int, int], float] = {}
    for tree in packing.trees:
        reached = [tree.root]
        for parent, child in tree.links:
            assert parent in reached and child not in reached
            reached.append(child)
            load[parent, child] = load.get((parent, child), 0.0) + tree.bits_per_second
        assert len(reached) == graph.size
    rates = dict(zip(map(tuple, graph.ends.tolist()), graph.bits_per_second.tolist(), strict=True))
    assert all(rate <= rates[link] * (1 + 1e-9) for link, rate in load.items())
    best = narrowest(graph, packing.trees[0].root)
    assert packing.best_bits_per_second == pytest.approx(
        best, rel=1e-4
    )  # rates that are no multiples of one are rounded
    assert 0.95 * best <= packing.bits_per_second <= best * (1 + 1e-9)


@pytest.mark.long
@pytest.mark.technique("blink", check=1)
def test_every_connected_subset_of_a_dgx1_is_used_up_to_its_smallest_cut() -> None:
    connected = 0
    for some in SUBSETS:
        graph = dgx1(LINK).among(some)
        if narrowest(graph, 0) == 0:
            with pytest.raises(LaconicError):
                blink(graph)
            continue
        connected += 1
        check(blink(graph), graph)
    assert connected == 197


@pytest.mark.technique("blink", check=1)
@pytest.mark.parametrize("some", [(0, 4), (1, 2, 6), (0, 3, 4, 7), (0, 1, 5, 6, 7), (1, 2, 3, 4, 5, 7)])
def test_subsets_of_a_dgx1_from_any_root(some: tuple[int, ...]) -> None:
    graph = dgx1(LINK).among(some)
    for root in {0, len(some) - 1}:
        check(blink(graph, root), graph)


@pytest.mark.technique("blink", check=1)
def test_all_eight_gpus_have_six_links_and_need_six_trees() -> None:
    packing = blink(dgx1(LINK))
    check(packing, dgx1(LINK))
    assert packing.bits_per_second == pytest.approx(6 * LINK) and len(packing.trees) == 6


def test_unequal_links_are_shared_by_fractions_where_whole_units_are_too_slow() -> None:
    for seed in range(4):
        draw = np.random.default_rng(seed)
        pairs = [*itertools.combinations(range(5), 2)]
        graph = Graph.of(5, [(a, b, float(r)) for (a, b), r in zip(pairs, draw.random(10) + 0.2, strict=True)])
        check(blink(graph), graph)
    triangle = Graph.of(3, [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)])
    check(blink(triangle), triangle)


def run(program: Program, numel: int) -> torch.Tensor:
    """Sum a vector of integers of this worker with the others'."""
    worker = connect()
    x = torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(worker.rank))
    complete([InFlight(worker.world.run(program, x))])
    return x


@pytest.mark.technique("blink", check=2)
@pytest.mark.parametrize("some", [(0, 1, 4), (0, 1, 2, 3, 5), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_packed_trees_give_the_exact_sum(some: tuple[int, ...]) -> None:
    program = blink_all_reduce(blink(dgx1().among(some)), blocks=3)
    for numel in (1, 101):
        found = laconic.simulate(lambda n=numel: run(program, n), len(some)).results
        parts = [torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(r)) for r in range(len(some))]
        assert all(torch.equal(x, torch.stack(parts).sum(dim=0)) for x in found)


@pytest.mark.technique("blink", check=2)
def test_gpus_without_a_ring_of_nvlinks_beat_a_ring_over_pcie() -> None:
    """GPUs 0, 1 and 4 have two links between three of them: a ring would have to go over PCIe."""
    pcie = 64e9
    trees = blink_all_reduce(blink(dgx1(LINK).among([0, 1, 4])))
    over_pcie = Graph.of(3, [(rank, 3, pcie) for rank in range(3)])
    slow = price(make_program("ring", 3), S, over_pcie).seconds
    assert slow / price(trees, S, dgx1(LINK).among([0, 1, 4])).seconds >= LINK / pcie


def test_a_broadcast_takes_the_time_of_its_rate() -> None:
    graph = dgx1(LINK)
    packing = blink(graph, 3)
    found = price(blink_broadcast(packing, 64), S, graph)
    assert found.busiest_seconds == pytest.approx(S * 8 / (6 * LINK))
    assert found.seconds <= S * 8 / (6 * LINK) * (7 + 63) / 64 * 1.001


def test_machines_sum_inside_then_among_their_roots_then_spread() -> None:
    """Three GPUs of one machine and five of another: between them goes what two ranks that sum would send."""
    packings = [blink(dgx1().among([0, 1, 4])), blink(dgx1().among([0, 1, 2, 3, 5]))]
    program = machines_all_reduce(packings, blocks=2)
    sends = program.sends
    crossing = (sends.source < 3) != (sends.destination < 3)
    assert program.shares[sends.chunk][crossing].sum() == pytest.approx(2.0)
    assert {*sends.source[crossing].tolist()} == {packings[0].trees[0].root, 3 + packings[1].trees[0].root}
    found = laconic.simulate(lambda: run(program, 57), 8).results
    parts = [torch.randint(-99, 99, (57,), generator=torch.Generator().manual_seed(r)) for r in range(8)]
    assert all(torch.equal(x, torch.stack(parts).sum(dim=0)) for x in found)


def test_two_kinds_of_links_end_together() -> None:
    graph, pcie = dgx1(LINK), Graph.of(8, [(rank, 8, 64e9) for rank in range(8)])
    fast, slow = blink_all_reduce(blink(graph)), make_program("ring", 8)
    times = price(fast, S, graph).seconds, price(slow, S, pcie).seconds
    both = over_both(fast, slow, *times, setup_seconds=1e-3)
    share = both.shares[: fast.chunks].sum()
    ends = price(fast, S * share, graph).seconds, 1e-3 + price(slow, S * (1 - share), pcie).seconds
    assert ends[0] == pytest.approx(ends[1]) and ends[0] < times[0]
    assert over_both(fast, slow, *times, setup_seconds=1.0) is fast


@pytest.mark.parametrize("spent", [1e-6, 1e-5, 1e-4])
def test_block_sizes_are_found_while_it_runs(spent: float) -> None:
    """Each message costs something, and few blocks leave the pipeline empty: between them is a best number."""
    graph = dgx1(LINK).among([0, 1, 2, 3])
    packing = blink(graph)
    times = {blocks: price(blink_broadcast(packing, blocks), S, graph, spent).seconds for blocks in range(1, 80)}
    asked: list[int] = []

    def seconds_of(blocks: int) -> float:
        asked.append(blocks)
        return times[blocks]

    found = tune_blocks(seconds_of)
    assert times[found] <= 1.02 * min(times.values()) and times[found] <= times[found + 1]
    assert len(asked) < 40


@pytest.mark.parametrize("seed", range(8))
def test_cheapest_trees_are_the_cheapest_of_all(seed: int) -> None:
    draw = np.random.default_rng(seed)
    prices = np.where(draw.random((5, 5)) < 0.8, draw.integers(1, 9, (5, 5)), np.inf)
    prices[:, 4] = np.minimum(prices[:, 4], 50)
    prices[4, 0] = 3.0

    def cost(parents: tuple[int, ...]) -> float:
        for start in range(1, 5):
            node, hops = start, 0
            while node and hops < 5:
                node, hops = parents[node - 1], hops + 1
            if node:
                return np.inf
        return float(sum(prices[parents[k - 1], k] for k in range(1, 5)))

    np.fill_diagonal(prices, np.inf)
    best = min(cost(parents) for parents in itertools.product(range(5), repeat=4))
    if not np.isfinite(best):
        with pytest.raises(LaconicError, match="no link leads to node"):
            cheapest_tree(prices, 0)
        return
    found = cheapest_tree(prices, 0)
    assert found[0] == -1 and cost(tuple(found[1:].tolist())) == best


def test_only_links_between_ranks_are_packed() -> None:
    with pytest.raises(LaconicError, match="without switches"):
        blink(Graph.of(2, [(0, 2, 1.0), (2, 1, 1.0)]))

"""Hidden groups are found by probing, and what is planned with them is fast on the network that was hidden."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

import laconic
from laconic.collective.compose import relabel
from laconic.collective.locality import find_groups
from laconic.collective.plink import inferred, plan
from laconic.collective.price import price
from laconic.collective.probe import Probe, denoised, probe_links, probe_rounds
from laconic.collective.program import Program
from laconic.collective.rings import ring
from laconic.errors import LaconicError
from laconic.network.network_tree import Level, Network
from laconic.network.routes import Routes
from laconic.real.connect import connect
from laconic.runtime.in_flight import InFlight, complete

S = 1e8
RATE = 10e9


@dataclass(frozen=True)
class Hidden:
    """A network on which rank k is at place `places[k]`, which nobody is told."""

    network: Network
    places: NDArray[np.int64]

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def capacities(self) -> NDArray[np.float64]:
        return self.network.capacities

    def routes(self, sources: ArrayLike, destinations: ArrayLike) -> Routes:
        return self.network.routes(self.places[np.asarray(sources)], self.places[np.asarray(destinations)])


def cloud(size: int, rack: int, seed: int, over: float = 4.0) -> Hidden:
    """Return racks whose uplinks have a part of what their ranks have together, with ranks anywhere."""
    levels = (Level(1, RATE, 20e-6), Level(rack, rack * RATE / over, 40e-6))
    return Hidden(Network(size, levels), np.random.default_rng(seed).permutation(size))


def probed(network: Hidden, seed: int, noise: float = 0.1) -> Probe:
    return denoised(*probe_links(network, noise, seed))


def adjusted_rand(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Return how far two groupings agree: 1 if they are the same, 0 on average if one is random."""
    table = np.array([[int(((a == x) & (b == y)).sum()) for y in np.unique(b)] for x in np.unique(a)])
    both = sum(comb(n, 2) for n in table.ravel().tolist())
    rows, columns = (sum(comb(n, 2) for n in table.sum(axis=k).tolist()) for k in (1, 0))
    expected = rows * columns / comb(len(a), 2)
    return (both - expected) / ((rows + columns) / 2 - expected)


@pytest.mark.technique("plink", check=1)
@pytest.mark.parametrize(("size", "rack"), [(16, 4), (24, 8), (40, 5), (64, 8)])
@pytest.mark.parametrize("seed", [0, 1])
def test_hidden_racks_are_found_in_one_pass_of_probes(size: int, rack: int, seed: int) -> None:
    network = cloud(size, rack, seed)
    racks = network.places // rack
    assert len(probe_rounds(size)) == size - 1
    found = plan(probed(network, seed), S).groups
    assert adjusted_rand(found, racks) >= 0.95


@pytest.mark.parametrize("size", [2, 5, 8, 11])
def test_rounds_are_disjoint_pairs_that_join_all(size: int) -> None:
    rounds = probe_rounds(size)
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    joined = [pair for pairs in rounds for pair in pairs]
    assert len(joined) == len(set(joined)) == size * (size - 1) // 2
    assert len(rounds) == (size - 1 if size % 2 == 0 else size)


def run(program: Program, numel: int) -> torch.Tensor:
    worker = connect()
    x = torch.randint(-99, 99, (numel,), generator=torch.Generator().manual_seed(worker.rank))
    complete([InFlight(worker.world.run(program, x))])
    return x


@pytest.mark.technique("plink", check=2)
def test_what_is_planned_is_exact() -> None:
    program = plan(probed(cloud(12, 4, 3), 3), S).program
    found = laconic.simulate(lambda: run(program, 53), 12).results
    parts = [torch.randint(-99, 99, (53,), generator=torch.Generator().manual_seed(r)) for r in range(12)]
    assert all(torch.equal(x, torch.stack(parts).sum(dim=0)) for x in found)


@pytest.mark.technique("plink", check=2)
@pytest.mark.parametrize(("size", "rack"), [(16, 4), (32, 8)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_plans_beat_a_ring_in_random_order_where_uplinks_are_oversubscribed(size: int, rack: int, seed: int) -> None:
    network = cloud(size, rack, seed)
    chosen = plan(probed(network, seed), S)
    took = price(chosen.program, S, network).seconds
    assert price(ring(size), S, network).seconds >= 1.5 * took
    assert chosen.seconds == pytest.approx(took, rel=0.35)
    known = relabel(ring(size), np.argsort(network.places).tolist())
    assert took <= 1.25 * price(known, S, network).seconds


def test_shortest_times_are_free_of_most_noise() -> None:
    network = cloud(16, 4, 5)
    exact, once = probed(network, 0, noise=0.0), probed(network, 0)
    often = denoised(*probe_links(network, 0.1, 0, repeats=6))
    there = ~np.eye(16, dtype=bool)
    off = [np.abs(found.distance()[there] / exact.distance()[there] - 1).mean() for found in (once, often)]
    assert off[1] < 0.5 * off[0] < 0.1
    assert (often.distance() == often.distance().T).all()


def test_the_network_is_read_from_the_probe() -> None:
    """Links of ranks and uplinks have their rates where most of a group's ranks exchanged with others at once."""
    network = cloud(16, 4, 1)
    groups = network.places // 4
    graph = inferred(probed(network, 0, noise=0.0), groups)
    np.testing.assert_allclose(graph.bits_per_second[:32], RATE, rtol=0.01)
    np.testing.assert_allclose(graph.bits_per_second[32:], RATE, rtol=0.3)


def test_groups_are_of_equal_size() -> None:
    draw = np.random.default_rng(0)
    places = np.concatenate([draw.normal(0, 1, 5), draw.normal(20, 1, 3)])
    groups = find_groups(np.abs(places[:, None] - places), 2)
    assert np.bincount(groups).tolist() == [4, 4] and len({*groups[5:].tolist()}) == 1
    with pytest.raises(LaconicError, match="no 3 groups of equal size"):
        find_groups(np.zeros((8, 8)), 3)

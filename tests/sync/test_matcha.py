"""MATCHA: matchings, probabilities and weight as promised, and half the time at the same loss."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.network.network_tree import Network
from laconic.topology.matchings import activation, best_probabilities, edge_colouring, laplacian
from laconic.virtual.compute import Compute
from tests.sync.gossiping import DIMENSION, classify, draws, sgd, walk

BRIDGE = (3, 4)
CLIQUES = tuple((i, j) for first in (0, 4) for i in range(first, first + 4) for j in range(i + 1, first + 4))
TWO_CLIQUES = (*CLIQUES, BRIDGE)
GRAPH = f'edges("{",".join(f"{a}-{b}" for a, b in TWO_CLIQUES)}")'


def connected(seed: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    draw = np.random.default_rng(seed)
    size = int(draw.integers(3, 13))
    tree = [(int(draw.integers(0, i)), i) for i in range(1, size)]
    more = [(i, j) for i in range(size) for j in range(i + 1, size) if draw.random() < 0.25 and (i, j) not in tree]
    return size, (*tree, *more)


@pytest.mark.technique("matcha", check=1)
@settings(max_examples=80)
@given(size=st.integers(1, 14), seed=st.integers(0, 10**6), density=st.floats(0, 1))
def test_matchings_are_disjoint_and_few(size: int, seed: int, density: float) -> None:
    graph = nx.gnp_random_graph(size, density, seed=seed)
    edges = list(graph.edges)
    matchings = edge_colouring(size, edges)
    assert sorted(edge for matching in matchings for edge in matching) == sorted(edges)
    for matching in matchings:
        assert len({vertex for edge in matching for vertex in edge}) == 2 * len(matching)
    assert len(matchings) <= max((degree for _, degree in graph.degree), default=0) + 1


@pytest.mark.long
@pytest.mark.technique("matcha", check=1)
@pytest.mark.parametrize("budget", [0.1, 0.3, 0.5, 0.9])
def test_probabilities_keep_the_budget_and_beat_spreading_it_evenly(budget: float) -> None:
    for seed in range(5):
        size, edges = connected(seed)
        plan = activation(size, edges, budget)
        p, count = np.array(plan.probabilities), len(plan.matchings)
        assert p.sum() <= budget * count + 1e-9 and (p >= 0).all() and (p <= 1).all()
        chosen, even = (np.linalg.eigvalsh(np.tensordot(q, plan.laplacians, 1))[1] for q in (p, np.full(count, budget)))
        assert chosen >= even - 1e-9


def test_probabilities_are_the_best_there_are() -> None:
    """Against a grid over three matchings."""
    parts = [laplacian(8, m) for m in edge_colouring(8, TWO_CLIQUES)]
    best = np.linalg.eigvalsh(np.tensordot(best_probabilities(parts, 0.5), parts, 1))[1]
    grid = np.linspace(0, 1, 11)
    rows = [(a, b, c, min(1.0, 2 - a - b - c)) for a in grid for b in grid for c in grid if a + b + c <= 2]
    assert best >= max(np.linalg.eigvalsh(np.tensordot(row, parts, 1))[1] for row in rows) - 1e-6


@pytest.mark.technique("matcha", check=1)
def test_the_whole_budget_is_dpsgd_with_one_weight() -> None:
    plan = activation(8, TWO_CLIQUES, 1.0)
    assert plan.probabilities == (1.0,) * len(plan.matchings)
    whole = np.eye(8) - plan.weight * laplacian(8, TWO_CLIQUES)
    seen = walk(f"matcha(1) / {GRAPH}", 8, 6, targets=draws(8, DIMENSION))
    for step in range(6):
        expected = whole @ (seen.x[step] - 0.1 * seen.gradients[step])
        np.testing.assert_allclose(seen.x[step + 1], expected, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("matcha", check=2)
def test_a_tenth_of_the_budget_still_agrees_and_is_what_is_spent() -> None:
    for seed in range(20):
        size, edges = connected(seed)
        plan = activation(size, edges, 0.1)
        assert 0 < plan.rho < 1
    plan = activation(8, TWO_CLIQUES, 0.1)
    active = np.mean([sum(plan.drawn(step, 0)) for step in range(10_000)])
    assert active == pytest.approx(sum(plan.probabilities), rel=0.02)


@pytest.mark.long
def test_rho_is_what_models_come_together_by_in_the_mean() -> None:
    plan = activation(8, TWO_CLIQUES, 0.5)
    square = np.mean([plan.at(step, 1).T @ plan.at(step, 1) for step in range(4000)], axis=0)
    assert np.linalg.eigvalsh(square - 1 / 8).max() == pytest.approx(plan.rho, abs=0.02)


def clock(tier: Any) -> float:
    seconds: float = tier.worker.clock_seconds()
    return seconds


def test_the_bridge_is_used_most() -> None:
    plan = activation(8, TWO_CLIQUES, 0.5)
    with_bridge = [p for m, p in zip(plan.matchings, plan.probabilities, strict=True) if BRIDGE in m]
    assert with_bridge == [max(plan.probabilities)]
    assert sorted(plan.probabilities)[-2] < max(plan.probabilities)


@pytest.mark.long
def test_half_the_links_time_at_the_same_loss() -> None:
    network = Network.flat(8, 1e6)
    whole, half = (
        classify(f"matcha({budget}) / {GRAPH}", 8, 120, sgd(0.3), clock, network=network, compute=Compute())
        for budget in (1.0, 0.5)
    )
    losses = [np.mean([end.loss for end in ends]) for ends in (whole, half)]
    seconds = [max(end.seen for end in ends) for ends in (whole, half)]
    assert losses[1] <= 1.02 * losses[0]
    assert 0.4 <= seconds[1] / seconds[0] <= 0.65

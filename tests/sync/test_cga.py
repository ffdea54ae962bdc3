"""Cross-gradient aggregation: the authors' projection, plain gossip where data agree, and data that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from laconic.errors import StrategyError
from laconic.sync.cga import projected
from tests.data import fixture
from tests.sync.gossiping import DIMENSION, classify, draws, mixing_of, sgd, walk


@pytest.mark.evidence("cga", recording="cga.npz")
@pytest.mark.parametrize("case", range(4))
@pytest.mark.parametrize("margin", [0.5, 0.0])
def test_projections_are_those_of_the_authors_program(case: int, margin: float) -> None:
    """That program weights the own gradient too, by which the direction is longer here."""
    data = {name.removeprefix(f"c{case}_"): x for name, x in fixture("cga.npz").items() if name.startswith(f"c{case}_")}
    own, weights = int(data["own"]), torch.from_numpy(data["pi"])
    rows = torch.from_numpy(data["grads"]).double() * (weights / weights[own])[:, None]
    others = [j for j in range(len(rows)) if j != own]
    direction, dual = projected(rows[own], rows[others], margin)
    np.testing.assert_allclose(dual.numpy(), data[f"margin{margin}_dual"], atol=1e-6)
    np.testing.assert_allclose((weights[own] * direction).numpy(), data[f"margin{margin}_direction"], atol=1e-6)


@pytest.mark.technique("cga", check=1)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["random", "opposed", "repeated", "zero"])
def test_no_neighbour_is_in_conflict_with_the_direction(seed: int, kind: str) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, others = torch.randn(7, generator=draw), torch.randn(4, 7, generator=draw)
    if kind == "opposed":
        others[1] = -own
    elif kind == "repeated":
        others[1:] = others[0]
    elif kind == "zero":
        others[2] = 0
    direction, dual = projected(own, others)
    assert (others @ direction >= -1e-6).all() and (dual >= 0).all()
    slack = (others @ direction)[dual > 1e-9]
    assert (slack.abs() < 1e-5).all(), "nearest: a constraint that pulls is just met"


@pytest.mark.technique("cga", check=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_without_conflict_is_left_as_it_is(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    own, others = torch.randn(9, generator=draw), torch.randn(3, 9, generator=draw)
    others[others @ own < 0] *= -1
    assert torch.equal(projected(own, others)[0], own)
    alone = walk('cga(0) / edges("0-1,1-2,2-3")', 4, 3, targets=np.ones((4, DIMENSION)))
    assert np.ptp(alone.x[-1], axis=0).max() < 1e-12


@pytest.mark.technique("cga", check=2)
@pytest.mark.parametrize("graph", ["ring", 'edges("0-1,1-2,2-3")', "complete"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_equal_data_it_is_momentum_sgd_with_consensus(graph: str, momentum: float) -> None:
    """Starts differ by little, so that no gradients conflict; the ends of a line have steps to spare."""
    strategy, workers, rate, updates = f"cga(0) / none / gossip / {graph}", 4, 0.05, 5
    w = mixing_of(strategy, workers).at(0)
    length = 1 + mixing_of(strategy, workers).neighbours
    starts = 5 + 0.1 * draws(workers, DIMENSION, seed=3)
    curvature = 1 + np.arange(DIMENSION) / 5
    seen = walk(strategy, workers, updates * length, sgd(rate, momentum), curvature=curvature, starts=starts)
    x, v = starts.copy(), np.zeros_like(starts)
    for update in range(updates):
        v = momentum * v - rate * curvature * x
        x = w @ x + v
        np.testing.assert_allclose(seen.x[(update + 1) * length], x, atol=1e-9)


def test_conflicting_targets_are_left_aside_as_the_projection_says() -> None:
    """One update written out, on a ring of three, with a margin and a momentum of its own."""
    rate, goals, starts = 0.1, draws(3, DIMENSION, seed=5), draws(3, DIMENSION, seed=6)
    seen = walk("cga(0.3) / ring", 3, 3, sgd(rate), targets=goals, starts=starts)
    for i in range(3):
        others = [j for j in range(3) if j != i]
        rows = torch.from_numpy(np.stack([starts[i] - goals[j] for j in others]))
        direction, _ = projected(torch.from_numpy(starts[i] - goals[i]), rows, 0.3)
        np.testing.assert_allclose(seen.x[3, i], starts.mean(axis=0) - rate * direction.numpy(), atol=1e-12)


def test_a_model_goes_one_way_and_a_gradient_back() -> None:
    whole, signs = (walk(f"cga / {word} / gossip / ring", 5, 6).sent_bytes for word in ("none", "scaled_sign"))
    model = 8 * DIMENSION
    assert whole == [2 * 2 * (model + model)] * 5
    assert signs == [2 * 2 * (model + 1 + 4)] * 5


def test_what_signs_left_out_is_sent_later() -> None:
    """Error feedback: over many updates with one fixed cross-gradient, their sum is sent up to a remainder."""

    def unsent(tier: Any) -> Any:
        return tier.sync_state["unsent.1.0"].numpy().copy() if tier.group.rank == 0 else None

    seen = walk("cga / scaled_sign / ring", 3, 90, sgd(0.0), targets=draws(3, DIMENSION, seed=1), look=unsent)
    left = [row[0] for row in seen.seen[2::3]]
    assert np.abs(left[-1]).max() > 0 and np.linalg.norm(left[-1]) < 4 * np.linalg.norm(left[0])


def test_an_end_in_the_midst_of_an_update_keeps_each_workers_own_model() -> None:
    strategy = "cga / ring until step 5, then bsp"
    seen = walk(strategy, 4, 5, starts=draws(4, DIMENSION), targets=draws(4, DIMENSION, seed=2))
    np.testing.assert_allclose(seen.x[5], np.broadcast_to(seen.x[3].mean(axis=0), seen.x[5].shape), atol=1e-12)


def test_a_compression_that_nobody_could_decode_is_refused() -> None:
    with pytest.raises(StrategyError, match="payload of a known length"):
        walk("cga / scaled_sign+ef / ring", 3, 1)


@pytest.mark.long
@pytest.mark.technique("cga", check=3)
def test_one_class_for_each_of_five_is_learned_where_gossip_forgets() -> None:
    """After equal numbers of batches, of which gossip makes three times as many updates, each at its better rate; every
    worker's own model counts."""

    def accuracy(strategy: str, steps: int) -> float:
        def run(rate: float, seed: int) -> float:
            ends = classify(strategy, [[c] for c in range(5)], steps, sgd(rate, 0.9), seed=seed)
            return sum(end.accuracy for end in ends) / len(ends)

        return max(run(rate, 0) + run(rate, 1) for rate in (0.03, 0.1)) / 2

    assert accuracy("cga", 120) >= accuracy("dpsgd", 120) + 5

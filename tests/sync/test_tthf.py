"""TT-HF: one report for each cluster, devices that agree as closely as promised, and what both are worth."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from laconic.errors import StrategyError
from laconic.sync.tthf import TTHF, consensus_rounds
from tests.sync.gossiping import DIMENSION, classify, draws, mixing_of, sgd, walk

MODEL_BYTES = 8 * DIMENSION


@pytest.mark.technique("tthf", check=1)
@pytest.mark.parametrize(("workers", "clusters"), [(8, 3), (5, 5), (7, 2)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_server_gets_one_model_of_each_cluster(workers: int, clusters: int, seed: int) -> None:
    """Without consensus every model is another one, so that the mean tells whose it is made of. Nobody sends a model
    but those, and member 0, which is the server."""
    strategy = f"tthf({clusters}, period=3, phi=1e9)"
    seen = walk(strategy, workers, 9, targets=draws(workers, DIMENSION, seed=seed))
    groups, sent, drawn = TTHF(clusters).grouping(workers), np.zeros(workers), set()
    assert sorted(rank for group in groups for rank in group) == list(range(workers))
    assert len(groups) == clusters and max(map(len, groups)) - min(map(len, groups)) <= 1
    for last in (2, 5, 8):
        stepped = seen.x[last] - 0.1 * seen.gradients[last]
        means = {
            devices: sum(len(group) / workers * stepped[d] for group, d in zip(groups, devices, strict=True))
            for devices in product(*groups)
        }
        (devices,) = [chosen for chosen, mean in means.items() if np.allclose(mean, seen.x[last + 1][0], atol=1e-12)]
        np.testing.assert_array_equal(seen.x[last + 1], np.broadcast_to(seen.x[last + 1][0], seen.x[last + 1].shape))
        sent[list(devices)] += MODEL_BYTES
        drawn.add(devices)
    sent[0] = 3 * (workers - 1) * MODEL_BYTES
    assert seen.sent_bytes == sent.tolist()
    assert len(drawn) > 1 or clusters == workers


@pytest.mark.technique("tthf", check=1)
@pytest.mark.parametrize("workers", [3, 4, 6])
@pytest.mark.parametrize("seed", [0, 1])
def test_one_cluster_that_agrees_in_every_step_is_bulk_synchronous(workers: int, seed: int) -> None:
    targets, curvature = draws(workers, DIMENSION, seed=seed), 1 + np.arange(DIMENSION) / 5
    ours, bulk = (
        walk(strategy, workers, 10, targets=targets, curvature=curvature)
        for strategy in ("tthf(clusters=1, period=4, phi=1e-9) / complete", "bsp")
    )
    np.testing.assert_allclose(ours.x, bulk.x, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("tthf", check=2)
@pytest.mark.parametrize("graph", ["ring", "edges", "star"])
@pytest.mark.parametrize("seed", [0, 1])
def test_devices_are_as_near_to_their_cluster_as_the_rule_says(graph: str, seed: int) -> None:
    """After every step, by the measured error and by the bound that devices know; without consensus most steps would
    leave them farther apart."""
    workers, rate, steps = 11, 0.1, 30

    def error(tier: Any) -> float:
        bound: float = tier.sync_state["error"].item()
        return bound

    def measured(sentence: str) -> tuple[np.ndarray, list[list[float]]]:
        targets = 3 * draws(workers, DIMENSION, seed=seed)
        seen = walk(f"{sentence} / {graph}", workers, steps, sgd(rate), targets=targets, noise=0.5, look=error)
        groups = TTHF(2).grouping(workers)
        centred = [seen.x[1:, list(g)] - seen.x[1:, list(g)].mean(axis=1, keepdims=True) for g in groups]
        return np.linalg.norm(np.concatenate(centred, axis=1), axis=2), seen.seen

    errors, bounds = measured("tthf")
    assert (errors <= np.array(bounds) + 1e-12).all() and (errors <= rate * 1.0).all()
    assert (errors[:19] > 0).any(), "agreement is not exact here"
    apart, _ = measured("tthf(phi=1e9)")
    assert np.mean(apart > rate * 1.0) > 0.5


@pytest.mark.technique("tthf", check=2)
@pytest.mark.parametrize("radius", [1.5, 4.0, 11.0])
def test_one_round_less_would_not_do(radius: float) -> None:
    """Targets on circles: after the first step models are apart in the mode that a ring forgets slowest, all equally
    far, so that the bound of a cluster's error, as one vector, is the error itself."""
    angles = 2 * np.pi * np.arange(6) / 6
    circle = np.stack([np.cos(angles), np.sin(angles), *np.zeros((DIMENSION - 2, 6))], axis=1)
    targets = np.concatenate([radius * circle, 2.5 * radius * circle])
    seen, contraction = walk("tthf / ring", 12, 1, targets=targets).x[1], 2 / 3
    for cluster in (seen[:6], seen[6:]):
        error = np.linalg.norm(cluster - cluster.mean(axis=0))
        assert contraction * 0.1 < error <= 0.1


def test_as_many_rounds_as_the_contraction_needs() -> None:
    assert [consensus_rounds(1.0, wanted, 0.5) for wanted in (1.0, 0.9, 0.5, 0.26, 0.25, 0.2)] == [0, 1, 1, 2, 2, 3]
    assert consensus_rounds(5.0, 1e-9, 0.0) == 1
    assert consensus_rounds(5.0, 0.0, 0.5) == 54, "a rate of zero asks for no more than rounding allows"


def test_consensus_multiplies_each_clusters_models_by_its_own_matrix() -> None:
    """One step of two clusters of unequal size: a line of three and one of four devices."""
    goals, rounds = draws(7, DIMENSION, seed=3), []
    seen = walk("tthf / edges", 7, 1, targets=goals)
    stepped = 0.1 * goals
    for group in TTHF(2).grouping(7):
        w = mixing_of("dpsgd / edges", len(group)).at(0)
        contraction = float(np.linalg.norm(w - 1 / len(group), 2))
        error = np.sqrt(len(group)) * np.linalg.norm(stepped[list(group)], axis=1).max()
        rounds.append(consensus_rounds(error, 0.1, contraction))
        expected = np.linalg.matrix_power(w, rounds[-1]) @ stepped[list(group)]
        np.testing.assert_allclose(seen.x[1][list(group)], expected, atol=1e-12)
    assert rounds[0] != rounds[1] and min(rounds) > 0


def test_more_clusters_than_workers_are_refused() -> None:
    with pytest.raises(StrategyError, match="clusters=3"):
        walk("tthf(5)", 3, 1)


@pytest.mark.long
@pytest.mark.technique("tthf", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fifth_of_the_reports_of_federated_averaging_is_enough(seed: int) -> None:
    """Five clusters of five devices that know three digits each. `local` has every device report in every interval;
    sampled devices that have not agreed with their clusters are worse."""
    draw = np.random.default_rng(seed)
    parts = [draw.choice(10, 3, replace=False).tolist() for _ in range(25)]

    def accuracy(strategy: str) -> float:
        return classify(strategy, parts, 400, sgd(0.1), seed=seed)[0].accuracy

    ours, everyone, alone = accuracy("tthf(5)"), accuracy("local(20)"), accuracy("tthf(5, phi=1e9)")
    assert len(TTHF(5).sampled(25, 0, 0)) == 5
    assert ours >= everyone - 1 and ours > alone

"""Cooperative SGD: one rule whose cases are the others."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.theory.local import cooperative
from laconic.theory.problems import Quadratic
from laconic.topology.mixing import Matrix
from tests.sync.gossiping import DIMENSION, Walk, draws, mixing_of, sgd, walk

TARGETS = draws(4, DIMENSION)


def by_hand(seen: Walk, matrix: Matrix, period: int, auxiliary: int = 0) -> None:
    """X = (X − rate·G)·S at every step, from the gradients that were really there; auxiliary models first."""
    rows = np.concatenate([np.zeros((auxiliary, DIMENSION)), seen.x[0]])
    for step, gradients in enumerate(seen.gradients):
        rows = rows - 0.1 * np.concatenate([np.zeros((auxiliary, DIMENSION)), gradients])
        if (step + 1) % period == 0:
            rows = matrix @ rows
        np.testing.assert_allclose(seen.x[step + 1], rows[auxiliary:], atol=1e-12)


@pytest.mark.technique("cooperative_sgd", check=1)
@pytest.mark.parametrize("period,rule", [(1, "bsp"), (4, "local_sgd(4)")])
def test_a_complete_graph_is_bsp_or_local_sgd(period: int, rule: str) -> None:
    seen = walk(f"cooperative({period}) / complete", 4, 12, targets=TARGETS)
    np.testing.assert_allclose(seen.x, walk(rule, 4, 12, targets=TARGETS).x, atol=1e-12)


@pytest.mark.technique("cooperative_sgd", check=1)
@pytest.mark.parametrize("period", [1, 3])
def test_a_sparse_graph_is_dpsgd_that_mixes_after_the_step(period: int) -> None:
    seen = walk(f"cooperative({period}) / ring", 4, 12, targets=TARGETS)
    by_hand(seen, mixing_of("ring", 4).at(0), period)
    if period == 1:
        np.testing.assert_allclose(seen.x, walk("sgp / ring", 4, 12, targets=TARGETS).x, atol=1e-12)


@pytest.mark.technique("cooperative_sgd", check=1)
@pytest.mark.parametrize("alpha", [0.1, 2 / 6])
@pytest.mark.parametrize("period", [1, 4])
def test_a_star_around_an_auxiliary_model_is_elastic_averaging(alpha: float, period: int) -> None:
    """x_i = x_i − alpha·(x_i − z), z = z + alpha·(sum of x_i − z), after the step; the best alpha is 2/(m + 2)."""
    seen = walk(f"cooperative({period}, auxiliary=1) / star({alpha})", 4, 12, targets=TARGETS)
    z, x = np.zeros(DIMENSION), seen.x[0]
    for step in range(12):
        x = x - 0.1 * seen.gradients[step]
        if (step + 1) % period == 0:
            x, z = x - alpha * (x - z), z + alpha * (x - z).sum(axis=0)
        np.testing.assert_allclose(seen.x[step + 1], x, atol=1e-12)
    assert cooperative.zeta(mixing_of(f"star({2 / 6})", 5).at(0)) == pytest.approx(4 / 6)


def test_auxiliary_models_may_outnumber_the_workers() -> None:
    seen = walk("cooperative(2, auxiliary=6) / torus", 4, 10, targets=TARGETS)
    by_hand(seen, mixing_of("torus", 10).at(0), 2, auxiliary=6)


@pytest.mark.technique("cooperative_sgd", check=3)
@pytest.mark.parametrize("auxiliary", [0, 1, 3])
def test_the_mean_over_all_columns_moves_by_the_effective_rate(auxiliary: int) -> None:
    def hosted(tier: object) -> np.ndarray:
        state = tier.sync_state  # type: ignore[attr-defined]
        return np.sum([x.numpy() for x in state.values()], axis=0) if state else np.zeros(DIMENSION)

    seen = walk(f"cooperative(2, auxiliary={auxiliary}) / ring", 4, 16, targets=TARGETS, look=hosted)
    effective = 4 * 0.1 / (4 + auxiliary)
    mean = np.zeros(DIMENSION)
    for step in range(16):
        mean = mean - effective * seen.gradients[step].mean(axis=0)
        columns = (seen.x[step + 1].sum(axis=0) + np.sum(seen.seen[step], axis=0)) / (4 + auxiliary)
        np.testing.assert_allclose(columns, mean, atol=1e-12)


@pytest.mark.long
@pytest.mark.technique("cooperative_sgd", check=3)
@pytest.mark.parametrize("words,period", [("cooperative(1) / ring", 1), ("cooperative(4) / ring", 4)])
def test_gradients_stay_below_the_bound(words: str, period: int) -> None:
    steps, rate, sigma = 200, 0.02, 0.5
    start = np.full(DIMENSION, 2.0)
    problem = Quadratic((1.0,) * DIMENSION, sigma).problem(start)
    noise = sigma / DIMENSION**0.5
    targets = np.tile(-start, (4, 1))  # all begin at 0: at distance `start` from the optimum
    seen = walk(words, 4, steps, sgd(rate), targets=targets, noise=noise)
    measured = np.mean(np.sum((seen.mean[:-1] + start) ** 2, axis=1))
    zeta = cooperative.zeta(mixing_of(words, 4).at(0))
    sent = cooperative.bound(problem, workers=4, period=period, iterations=steps, rate=rate, mixing=zeta)
    assert measured < sent.total

"""Asynchrony begets momentum: the recursion, the fit and the tuning, on quadratics."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.errors import LaconicError
from laconic.theory.delayed import momentum
from laconic.theory.problems import Quadratic
from laconic.theory.simulate.arrivals import arrivals, delays, reads
from laconic.theory.simulate.delayed import delayed_sgd


def test_the_staleness_law_is_geometric_with_mean_of_the_others() -> None:
    for workers in (1, 2, 16):
        law = momentum.staleness_law(workers, 2000)
        assert law.sum() == pytest.approx(1) and law @ np.arange(2001) == pytest.approx(workers - 1)
        assert momentum.memory(law)[:5] == pytest.approx((1 - 1 / workers) ** np.arange(1, 6))
    late = delays(reads(arrivals([1.0] * 4, 4000, runs=5, seed=0), 4))[:, 100:]
    found = np.bincount(late.ravel())[:10] / late.size
    assert found == pytest.approx(momentum.staleness_law(4, 9), abs=0.01)


@pytest.mark.technique("asynchrony_momentum", check=2)
@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_the_mean_trajectory_follows_the_recursion_and_shows_its_momentum(workers: int) -> None:
    objective, start, rate, steps = Quadratic((1.0, 0.5, 0.25)), np.ones(3), 0.2, 100
    read = reads(arrivals([1.0] * workers, steps, runs=2000, seed=workers), workers)
    path = np.array([start, *(s.x.mean(axis=0) for s in delayed_sgd(objective, start, read, rate, runs=2000))])
    assert np.abs(path - momentum.recursion(objective.eigenvalues, start, rate, workers, steps)).max() < 0.1
    found, step = momentum.fit(path, objective.gradient(path))
    assert found == pytest.approx(momentum.implicit_momentum(workers), abs=0.05)
    assert step == pytest.approx(rate / workers, rel=0.2)
    with pytest.raises(LaconicError, match="record at least 4"):
        momentum.fit(path[:3], path[:3])


@pytest.mark.long
@pytest.mark.technique("asynchrony_momentum", check=3)
def test_the_best_explicit_momentum_falls_with_the_number_of_workers() -> None:
    """At every learning rate of the grid; steps until the mean loss of 20 runs is a thousandth of the first."""
    objective, start, runs, steps = Quadratic.between(0.02, 1.0, 5), np.ones(5), 20, 600
    momenta, learning_rates = np.round(np.arange(-0.9, 0.91, 0.1), 1), 2.0 ** np.arange(-4, 0)
    mu, rate = (np.repeat(axis.ravel(), runs)[:, None] for axis in np.meshgrid(momenta, learning_rates))
    target, needed = 1e-3 * float(objective.value(start)), {}
    for workers in (1, 4, 16):
        read = reads(arrivals([1.0] * workers, steps, runs=runs, seed=workers), workers)
        first = np.full(len(mu) // runs, steps + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            states = delayed_sgd(objective, start, np.tile(read, (len(first), 1)), rate, momentum=mu, runs=len(mu))
            for step, state in enumerate(states, start=1):
                loss = objective.value(state.x).reshape(len(first), runs).mean(axis=1)
                first = np.where((first > steps) & (loss <= target), step, first)
        needed[workers] = first.reshape(len(learning_rates), len(momenta))
    best = {workers: momenta[found.argmin(axis=1)] for workers, found in needed.items()}
    assert np.all(best[4] <= best[1]) and np.all(best[16] <= best[4]) and np.any(best[16] < best[1])
    tuned = needed[16].min(axis=1)
    assert np.all(tuned < needed[16][:, -1])


def test_the_first_guess_takes_off_what_asynchrony_adds() -> None:
    assert [round(momentum.first_guess(0.9, workers), 3) for workers in (1, 2, 10, 100)] == [0.9, 0.4, 0.0, -0.09]
    assert momentum.first_guess(0.0, 1000) == -0.9

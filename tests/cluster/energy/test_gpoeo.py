"""GPOEO: periods of noisy signals, a model of clocks, and a search that ends near the best clock within the bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from laconic.cluster.energy.boosted_trees import fit_trees
from laconic.cluster.energy.gpoeo import ClockModel, Measured, train_clock_model, tune_clock
from laconic.cluster.energy.periods import iteration_seconds
from laconic.errors import ClusterError

CLOCKS = [round(0.3 + 0.0125 * i, 4) for i in range(57)]


@pytest.mark.technique("gpoeo", check=1)
@pytest.mark.parametrize("period", [0.1, 0.1371, 0.33, 0.75, 1.618, 3.3, 5.0])
@pytest.mark.parametrize("seed", range(2))
def test_the_period_of_noisy_signals_is_found(period: float, seed: int) -> None:
    draws = np.random.default_rng(seed)
    interval, count = 0.01, 4096
    phase = np.arange(count) * interval / period % 1.0
    rows = []
    for _ in range(3):  # power and two utilisations: phases of an iteration, of unequal lengths and heights
        ends = np.sort(draws.uniform(0, 1, 5))
        row = draws.uniform(0, 1, 6)[np.searchsorted(ends, phase)]
        rows.append(200 + 100 * (row + 0.1 * np.ptp(row) * draws.standard_normal(count)))
    assert iteration_seconds(np.array(rows), interval) == pytest.approx(period, rel=0.02)


@pytest.mark.technique("gpoeo", check=1)
def test_a_period_whose_own_frequency_is_absent_is_found() -> None:
    turns = 2 * np.pi * np.arange(2000) * 0.01 / 0.8
    signal = np.cos(2 * turns) + np.cos(3 * turns) + 0.1 * np.random.default_rng(0).standard_normal(2000)
    assert iteration_seconds(signal, 0.01) == pytest.approx(0.8, rel=0.02)


def test_signals_without_a_period_are_refused() -> None:
    with pytest.raises(ClusterError, match="do not change"):
        iteration_seconds(np.ones((2, 100)), 0.1)


@dataclass(frozen=True)
class Gpu:
    """A workload on a GPU: idle power, computing that the clock speeds up, and memory time that it does not."""

    idle: float
    dynamic: float
    compute: float
    memory: float

    def measure(self, clock: float) -> Measured:
        seconds = self.compute / clock + self.memory
        volt = 0.6 + 0.4 * max(clock - 0.4, 0.0) / 0.6
        busy = self.compute / clock / seconds
        return Measured((self.idle + self.dynamic * clock * volt**2 * (0.3 + 0.7 * busy)) * seconds, seconds)

    @property
    def counters(self) -> list[float]:
        """What counters tell at the default clock: how busy the SMs are, and the share of idle power."""
        one = self.measure(1.0)
        return [self.compute / one.seconds, self.idle / (one.energy / one.seconds)]

    @staticmethod
    def drawn(draws: np.random.Generator) -> Gpu:
        busy = float(draws.uniform(0.1, 0.95))
        return Gpu(float(draws.uniform(20, 90)), float(draws.uniform(120, 280)), busy, 1 - busy)


@pytest.fixture(scope="module")
def model() -> ClockModel:
    """Trained on workloads that no test measures again."""
    draws, gpus = np.random.default_rng(100), list[Gpu]()
    gpus = [Gpu.drawn(draws) for _ in range(40)]
    clocks = CLOCKS[::8]
    return train_clock_model(
        [gpu.counters for gpu in gpus], [clocks] * 40, [[gpu.measure(clock) for clock in clocks] for gpu in gpus]
    )


@pytest.mark.evidence("gpoeo")
@pytest.mark.technique("gpoeo", check=2)
@pytest.mark.parametrize("seed", range(25))
def test_the_search_ends_near_the_best_clock_within_the_bound(seed: int, model: ClockModel) -> None:
    gpu, tried = Gpu.drawn(np.random.default_rng(seed)), list[float]()

    def measure(clock: float) -> Measured:
        tried.append(clock)
        return gpu.measure(clock)

    found = tune_clock(measure, model.best(gpu.counters, CLOCKS, 1.05), CLOCKS)
    assert len(tried) == found.measurements <= 8 and len(set(tried)) == len(tried)
    default = gpu.measure(1.0)
    swept = [one for clock in CLOCKS if (one := gpu.measure(clock)).seconds <= 1.05 * default.seconds]
    assert found.measured == gpu.measure(found.clock)
    assert found.measured.seconds <= 1.05 * default.seconds
    assert found.measured.energy <= 1.02 * min(one.energy for one in swept)


@pytest.mark.technique("gpoeo", check=2)
@pytest.mark.parametrize("predicted", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_wrong_prediction_is_made_good(predicted: float, seed: int) -> None:
    gpu = Gpu.drawn(np.random.default_rng(seed))
    found = tune_clock(gpu.measure, predicted, CLOCKS)
    limit = 1.05 * gpu.measure(1.0).seconds
    best = min(one.energy for clock in CLOCKS if (one := gpu.measure(clock)).seconds <= limit)
    assert found.measurements <= 8 and found.measured.seconds <= limit
    assert found.measured.energy <= 1.02 * best


def test_predictions_of_workloads_that_were_not_seen_are_near(model: ClockModel) -> None:
    errors = []
    for seed in range(20):
        gpu = Gpu.drawn(np.random.default_rng(seed))
        one, other = gpu.measure(0.7), gpu.measure(1.0)
        errors.append(model.energy.predict(np.array([[*gpu.counters, 0.7]]))[0] / (one.energy / other.energy) - 1)
    assert float(np.mean(np.abs(errors))) < 0.05
    with pytest.raises(ClusterError, match="default clock"):
        train_clock_model([[0.5]], [[0.9]], [[Measured(1.0, 1.0)]])


def test_boosted_trees_fit_a_step_and_a_product() -> None:
    draws = np.random.default_rng(0)
    x = draws.uniform(-1, 1, (400, 2))
    y = (x[:, 0] > 0.2) * 2.0 + x[:, 0] * x[:, 1]
    found = fit_trees(x, y)
    assert float(np.mean((found.predict(x) - y) ** 2)) < 0.02 * float(y.var())
    assert fit_trees(x, np.ones(400)).predict(x) == pytest.approx(np.ones(400))

"""Zico: peaks of memory never coincide, nobody waits where memory is plentiful, and both jobs run at once."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.sharing.zico import MemoryCurve, Running, delay, peak_together
from laconic.errors import ClusterError


def triangle(peak: float, seconds: float, steps: int = 12) -> MemoryCurve:
    """Memory that rises in the forward pass and falls in the backward pass, twice as long."""
    up = steps // 3
    rising = [peak * (k + 1) / up for k in range(up)]
    falling = [peak * (steps - up - k) / (steps - up) for k in range(steps - up)]
    return MemoryCurve((*rising, *falling), seconds)


def run(curves: list[MemoryCurve], budget: float, iterations: int) -> tuple[list[Running], float]:
    """Return every iteration of jobs that begin their next as soon as they may, and all time that they waited."""
    runs: list[Running] = []
    latest = [Running(curve, -curve.seconds) for curve in curves]
    waited = 0.0
    for _ in range(iterations):
        job = min(range(len(curves)), key=lambda j: latest[j].end)
        now = latest[job].end
        others = [run for j, run in enumerate(latest) if j != job and run.end > now]
        wait = delay(now, curves[job], others, budget)
        waited += wait
        latest[job] = Running(curves[job], now + wait)
        runs.append(latest[job])
    return runs, waited


@pytest.mark.technique("zico", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_budget_holds_in_ten_thousand_iterations(seed: int) -> None:
    draws = np.random.default_rng(seed)
    waits = 0.0
    for _ in range(10):
        count = int(draws.integers(2, 4))
        curves = [
            MemoryCurve.learned(
                [(x, float(draws.uniform(0.05, 0.9))) for x in (np.arange(9) + 0.5) / 9],
                9,
                float(draws.uniform(0.5, 2)),
            )
            for _ in range(count)
        ]
        runs, waited = run(curves, 1.0, 250)
        waits += waited
        for k in range(0, len(runs), 20):  # windows that overlap
            assert peak_together(runs[k : k + 28]) <= 1.0 + 1e-9
    assert waits > 0


@pytest.mark.technique("zico", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_nobody_waits_where_all_peaks_fit(seed: int) -> None:
    draws = np.random.default_rng(seed)
    curves = [triangle(0.33, float(draws.uniform(0.5, 2))) for _ in range(3)]
    runs, waited = run(curves, 1.0, 600)
    assert waited == 0
    assert len(runs) == 600


@pytest.mark.technique("zico", check=2)
@pytest.mark.parametrize("other", [1.0, 1.3])
def test_two_triangles_run_at_once_faster_than_in_turns(other: float) -> None:
    curves = [triangle(0.7, 1.0), triangle(0.7, other)]
    assert peak_together([Running(curve, 0.0) for curve in curves]) > 1  # plain co-location overflows
    runs, waited = run(curves, 1.0, 2000)
    assert waited > 0
    counts = [sum(run.curve is curve for run in runs) for curve in curves]
    end = max(run.end for run in runs)
    in_turns = sum(count * curve.seconds for count, curve in zip(counts, curves, strict=True))
    assert min(counts) > 700
    assert in_turns / end >= 1.3


@pytest.mark.technique("zico", check=1)
def test_curves_that_never_fit_run_one_after_another() -> None:
    flat = MemoryCurve((0.7, 0.7, 0.7), 1.0)
    assert delay(0.25, flat, [Running(flat, 0.0)], 1.0) == pytest.approx(0.75)
    assert delay(0.25, MemoryCurve((0.1, 0.1, 0.7), 1.0), [Running(flat, 0.0)], 1.0) == pytest.approx(1 / 12)
    with pytest.raises(ClusterError, match="never run"):
        delay(0.0, flat, [], 0.5)


def test_what_is_learned_covers_every_sample() -> None:
    curve = MemoryCurve.learned([(0.1, 3.0), (0.1, 4.0), (0.99, 1.0)], 2, 1.0)
    assert curve.steps == (4.0, 1.0) and curve.peak == 4.0

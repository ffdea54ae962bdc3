"""Transparent sharing: the opportunistic job finds what is left, and production notices nothing."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.sharing.tgs import RateControl, SharedGpu, Tenant, control

GB = 1e9


def run(gpu: SharedGpu, production: list[Tenant], opportunistic: Tenant) -> np.ndarray:
    """Return the rates of both and what was allowed, a row for each interval."""
    known, found = RateControl(), []
    for tenant in production:
        rates = gpu.rates(tenant, opportunistic, known.allowed)
        found.append((*rates, known.allowed))
        known = control(known, rates[0])
    return np.array(found)


@pytest.mark.technique("tgs", check=1)
@pytest.mark.parametrize("demand", [0.2, 0.5, 0.83])
def test_the_rate_oscillates_around_what_production_leaves(demand: float) -> None:
    found = run(SharedGpu(16 * GB), [Tenant(demand)] * 2000, Tenant(1.0))
    settled = found[300:]
    left = 1 - demand
    assert settled[:, 2].max() > left > settled[:, 2].min()
    crossings = np.count_nonzero(np.diff(settled[:, 2] > left))
    assert crossings > 20
    assert settled[:, 2].mean() > 0.7 * left
    assert settled[:, 1].mean() > 0.7 * left
    assert found[:, 0].min() > 0.97 * demand


@pytest.mark.technique("tgs", check=1)
@pytest.mark.parametrize(("before", "after"), [(0.8, 0.3), (0.3, 0.8)])
def test_the_reference_is_measured_anew_when_production_changes(before: float, after: float) -> None:
    found = run(SharedGpu(16 * GB), [Tenant(before)] * 600 + [Tenant(after)] * 900, Tenant(1.0))[-600:]
    assert found[:, 2].mean() > 0.7 * (1 - after)
    assert found[:, 0].min() > 0.97 * after


@pytest.mark.technique("tgs", check=2)
@pytest.mark.parametrize("demand", [0.4, 0.6])
def test_over_committed_memory_slows_only_the_opportunistic_job(demand: float) -> None:
    gpu, production = SharedGpu(16 * GB), Tenant(demand, 10 * GB)
    fits = run(gpu, [production] * 1000, Tenant(1.0, 6 * GB))
    over = run(gpu, [production] * 1000, Tenant(1.0, 6.6 * GB))
    assert np.array_equal(over[:, 0], fits[:, 0])
    assert over[300:, 1].mean() < 0.5 * fits[300:, 1].mean()
    slowed, other = gpu.unmanaged(production, Tenant(1.0, 6.6 * GB))
    assert slowed < 0.1 * demand
    assert over[300:, 1].mean() >= 3 * other
    assert gpu.unmanaged(production, Tenant(1.0, 6 * GB)) == pytest.approx((demand / (1 + demand), 1 / (1 + demand)))

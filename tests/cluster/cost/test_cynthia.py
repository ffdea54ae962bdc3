"""Cynthia: the bounded search finds what an exhaustive one finds, and workers beyond the servers' reach do not help."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.cost.cynthia import ServedJob, cheapest, provision
from laconic.cluster.cost.instances import InstanceType
from laconic.errors import ClusterError


@pytest.mark.technique("cynthia", check=1)
@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("seed", range(15))
def test_the_search_finds_what_an_exhaustive_one_finds(seed: int, synchronous: bool) -> None:
    draws = np.random.default_rng(seed)
    kinds = [
        InstanceType(f"kind{i}", p, 1e10 * p ** draws.uniform(0.6, 1.3), 1e8 * u, 1e8 * v)
        for i, (p, u, v) in enumerate(draws.uniform(0.2, 3, (4, 3)))
    ]
    job = ServedJob(10 ** draws.uniform(9, 11.5), 10 ** draws.uniform(5.5, 7.5), 900.0, 0.3, synchronous)
    goal, most = 0.6, 24
    every = [
        provision(job, goal, kind, workers, servers)
        for kind in kinds
        for workers in range(1, most + 1)
        for servers in range(1, most + 1)
    ]
    times = sorted(found.seconds for found in every)
    for limit in (times[len(times) // 50], times[len(times) // 5], times[-1], 0.99 * times[0]):
        fit = [found for found in every if found.seconds <= limit]
        found = cheapest(job, goal, limit, kinds, most)
        if not fit:
            assert found is None
        else:
            assert found is not None and found.seconds <= limit
            assert found.cost == pytest.approx(min(fit, key=lambda f: f[:2]).cost, rel=1e-12)
            assert found in fit


@pytest.mark.technique("cynthia", check=1)
def test_workers_beyond_what_servers_feed_take_no_less_time() -> None:
    kind = InstanceType("small", 1.0, 1e10, 100e6, 50e6)
    job = ServedJob(4e10, 10e6, 100.0, 0.0)
    # one server gives 50 MB/s in all: with n workers 20 MB take n times 0.4 s, and computing takes 4 s / n
    assert job.transfer_seconds(kind, 3, 1) == pytest.approx(1.2)
    assert job.iteration_seconds(kind, 3, 1) == pytest.approx(4 / 3)
    assert job.iteration_seconds(kind, 4, 1) == pytest.approx(1.6)
    assert job.iteration_seconds(kind, 4, 2) == pytest.approx(1.0)
    assert job.transfer_seconds(kind, 1, 3) == pytest.approx(0.2)  # the worker's own network
    apart = ServedJob(4e10, 10e6, 100.0, 0.0, synchronous=False)
    assert apart.iteration_seconds(kind, 4, 1) == pytest.approx(4 + 1.6)
    assert apart.seconds(1.0, kind, 4, 1) == pytest.approx(100 * 2 / 4 * 5.6)
    with pytest.raises(ClusterError, match="never reached"):
        job.seconds(0.0, kind, 1, 1)

"""Parrot: every coflow proceeds, no port idles that a flow could use, and the job of least service is favoured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laconic.cluster.flows.parrot import parrot, weights
from laconic.cluster.flows.traffic import FlowJob, Rates, Traffic, send_all
from tests.cluster.flows.mixes import GBIT, heavy_tailed, ring, training


@pytest.mark.technique("parrot", check=1)
@pytest.mark.parametrize(("jobs", "most"), [(training(0, 5, iterations=(2, 4)), 3), (heavy_tailed(1, 15), 3)])
def test_ports_hold_nothing_idles_and_every_coflow_proceeds(jobs: list[FlowJob], most: int) -> None:
    together = []

    def watched(traffic: Traffic, memory: Any) -> tuple[Rates, Any]:
        rates, memory = parrot(traffic, memory)
        used = np.bincount(traffic.ports.ravel(), np.repeat(rates.values, 2), len(traffic.room))
        assert np.all(used <= traffic.room * (1 + 1e-6))
        full = used >= traffic.room * (1 - 1e-6)
        assert np.all(full[traffic.ports].any(axis=1))  # each flow has a full port: none could send more
        assert np.all(rates.values > 0)
        together.append(len(np.unique(traffic.owner)))
        return rates, memory

    send_all(jobs, 8, 10 * GBIT, watched)
    assert max(together) >= most


@pytest.mark.technique("parrot", check=1)
def test_the_job_with_the_least_service_per_coflow_has_the_largest_weight() -> None:
    found: list[dict[int, float]] = []

    def watched(traffic: Traffic, memory: Any) -> tuple[Rates, Any]:
        found.append(weights(traffic))
        return parrot(traffic, memory)

    jobs = [FlowJob("large", 0.0, ring([0, 1, 2], 90e6), 4), FlowJob("small", 0.05, ring([0, 1, 2], 9e6), 12)]
    large, small = send_all(jobs, 3, 10 * GBIT, watched).seconds
    both = [weight for weight in found if len(weight) == 2]
    assert both and all(weight[1] > weight[0] == 1 for weight in both)
    alone = send_all(jobs[1:], 3, 10 * GBIT, parrot).seconds[0]
    assert small < 1.5 * alone  # two jobs that share fairly take twice as long
    assert large > small


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_training_jobs_end_sooner_than_with_fair_flows_and_with_aalo(seed: int) -> None:
    from laconic.cluster.flows.aalo import aalo
    from laconic.cluster.flows.rates import fair

    total = {rule.__name__: send_all(training(seed), 8, 10 * GBIT, rule).seconds.sum() for rule in (fair, aalo, parrot)}
    assert total["parrot"] < 0.9 * total["fair"]
    assert total["parrot"] < 0.96 * total["aalo"]

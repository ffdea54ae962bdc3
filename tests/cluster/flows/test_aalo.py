"""Aalo: queues by what was sent, first in first out where there is one, and shorter waits than with fair flows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from laconic.cluster.flows.aalo import aalo, queue_of
from laconic.cluster.flows.rates import one_after_another, sending
from laconic.cluster.flows.traffic import FlowJob, Rates, Traffic, send_all
from laconic.errors import ClusterError
from laconic.network.flow import Flow
from tests.cluster.flows.mixes import GBIT, heavy_tailed


def flow(source: int, destination: int, nbytes: float) -> Flow:
    return Flow(np.array([source]), np.array([destination]), np.array([nbytes]), 1)


@pytest.mark.technique("aalo", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_coflows_queue_counts_the_thresholds_that_it_has_crossed(seed: int) -> None:
    last: dict[int, int] = {}
    thresholds = 10e6 * 10.0 ** np.arange(9)

    def watched(traffic: Traffic, memory: Any) -> tuple[Rates, Any]:
        for job in sending(traffic):
            queue = queue_of(float(traffic.sent_of_coflow[job]))
            assert queue == np.count_nonzero(traffic.sent_of_coflow[job] * (1 + 1e-8) >= thresholds)
            assert queue >= last.get(job, 0)
            last[job] = queue
        return aalo(traffic, memory)

    jobs = heavy_tailed(seed, 18)
    send_all(jobs, 8, 10 * GBIT, watched)
    for job, one in enumerate(jobs):
        if one.coflow.nbytes.sum() > 1.01e8:
            assert last[job] >= 2  # the decision at a threshold is made at the threshold


@pytest.mark.technique("aalo", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_queue_is_first_in_first_out(seed: int) -> None:
    def in_order(traffic: Traffic, memory: Any) -> tuple[Rates, Any]:
        return Rates(one_after_another(traffic, [[job] for job in sending(traffic)], traffic.room.copy())), memory

    jobs = heavy_tailed(seed, 18)
    one = send_all(jobs, 8, 10 * GBIT, partial(aalo, queues=1)).completed
    assert one == pytest.approx(send_all(jobs, 8, 10 * GBIT, in_order).completed, rel=1e-9)
    assert not np.allclose(one, send_all(jobs, 8, 10 * GBIT, aalo).completed)


@pytest.mark.technique("aalo", check=1)
def test_a_large_coflow_falls_behind_a_small_one_and_does_not_starve() -> None:
    jobs = [FlowJob("large", 0.0, flow(0, 1, 200e6)), FlowJob("small", 0.5, flow(0, 1, 9e6))]
    large, small = send_all(jobs, 2, 100e6, aalo).completed
    # the large one has sent 50 MB and is in the second queue: one part against ten
    assert small == pytest.approx(0.5 + 9e6 / (100e6 * 10 / 11))
    assert large == pytest.approx(2.09)
    jobs = [FlowJob("large", 0.0, flow(0, 1, 200e6)), FlowJob("small", 0.0, flow(0, 1, 5e6))]
    # it is first until it has sent 10 MB, and falls then, though no flow begins or ends
    assert send_all(jobs, 2, 100e6, aalo).completed[1] == pytest.approx(0.1 + 5e6 / (100e6 * 10 / 11))


def test_rates_that_a_port_cannot_carry_are_refused() -> None:
    jobs = [FlowJob("a", 0.0, flow(0, 1, 1e6)), FlowJob("b", 0.0, flow(0, 1, 1e6))]
    with pytest.raises(ClusterError, match="more than it carries"):
        send_all(jobs, 2, 1e6, lambda traffic, memory: (Rates(np.full(len(traffic.owner), 1e6)), memory))
    with pytest.raises(ClusterError, match="for ever"):
        send_all(jobs, 2, 1e6, lambda traffic, memory: (Rates(np.zeros(len(traffic.owner))), memory))

"""Jobs whose phases are shifted so that one sends while the others compute."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.flows.interleaving import Phases, interleave
from laconic.cluster.flows.rates import fair
from laconic.cluster.flows.traffic import FlowJob, send_all
from laconic.errors import ClusterError
from laconic.network.flow import Flow

RATE, ITERATIONS = 1e6, 40


def sent(nbytes: float) -> Flow:
    return Flow(np.array([0]), np.array([1]), np.array([nbytes]), 1)


def seconds_of_iterations(jobs: list[Phases], shifts: tuple[float, ...]) -> np.ndarray:
    """The mean seconds of an iteration of each job, over one link that they share fairly."""
    made = [
        FlowJob(f"job{k}", shift, sent(one.send_seconds * RATE), ITERATIONS, one.compute_seconds)
        for k, (one, shift) in enumerate(zip(jobs, shifts, strict=True))
    ]
    order = sorted(range(len(jobs)), key=lambda k: shifts[k])
    found = np.empty(len(jobs))
    found[order] = send_all(made, 2, RATE, fair).seconds / ITERATIONS
    return found


@pytest.mark.parametrize("jobs", [[(0.6, 0.4)] * 2, [(0.7, 0.3)] * 3, [(0.55, 0.45), (1.6, 0.4)], [(0.5, 0.5)] * 2])
def test_jobs_that_fit_are_as_fast_as_alone(jobs: list[tuple[float, float]]) -> None:
    phases = [Phases(*one) for one in jobs]
    found = interleave(phases)
    assert found.compatibility == pytest.approx(1.0, abs=0.02)
    alone = [one.seconds for one in phases]
    np.testing.assert_allclose(seconds_of_iterations(phases, found.shifts), alone, rtol=0.02)
    together = seconds_of_iterations(phases, (0.0,) * len(jobs))
    assert (together / alone).max() > 1.1


def test_jobs_that_want_more_than_the_link_are_told_and_get_all_of_it() -> None:
    """Two that send for seven tenths of their time: the link is busy for 1.4 s of both iterations, whatever is done."""
    phases = [Phases(0.3, 0.7)] * 2
    found = interleave(phases)
    assert found.compatibility == pytest.approx(0.6, abs=0.02)
    shifted, together = (seconds_of_iterations(phases, one) for one in (found.shifts, (0.0, 0.0)))
    np.testing.assert_allclose(shifted, 1.4, rtol=0.01)
    np.testing.assert_allclose(together, 1.7, rtol=0.01)


def test_a_single_job_is_not_shifted() -> None:
    assert interleave([Phases(0.2, 0.9)]) == ((0.0,), 1.0)


def test_jobs_without_a_common_period_or_without_messages_are_refused() -> None:
    with pytest.raises(ClusterError, match="no short common multiple"):
        interleave([Phases(0.5 + 0.0731 * k, 0.5) for k in range(6)])
    with pytest.raises(ClusterError, match="send something"):
        interleave([Phases(0.5, 0.0)])

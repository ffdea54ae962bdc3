"""E-LAS: attained service where nothing else tells jobs apart, epochs where they do, and faster than without them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Decision
from laconic.cluster.epochs import InEpochs
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policies.elas import Elas, expected_service
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Advanced, Event, State
from tests.cluster.baselines import TwoQueues
from tests.data import folder_of


@dataclass(frozen=True)
class ServedThenStopped(Policy):
    """Lets everybody run for a while in a cluster that holds all, then stops all and notes E-LAS's order."""

    fraction: float = 0.0

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        if state.now != 51:
            stops = state.now == 50
            grants = {} if stops else run_in_order(state, state.active).grants
            return Decision(grants, 51.0 if stops else 50.0 if state.now < 50 else None), None
        order = Elas().order(state, dict.fromkeys(state.active, self.fraction) if self.fraction else {})
        attained = [float(state.attained(job)) for job in order]
        assert attained == sorted(attained) and attained[0] < attained[-1]
        last = Elas().order(state, dict.fromkeys(state.active, 0.5) | {order[-1]: 1.0})
        assert last[0] == order[-1]
        return run_in_order(state, state.active), None


@pytest.mark.technique("elas", check=1)
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("scale", [1, 300])  # within the first queue, and over several
def test_with_equal_fractions_the_order_is_that_of_attained_service(fraction: float, scale: int) -> None:
    jobs = [Job(f"job{i}", a, g * scale, Fixed(500.0)) for i, (a, g) in enumerate([(0, 1), (1, 3), (2, 2), (9, 1)])]
    replay(jobs, Cluster.uniform(7 * scale, 1), ServedThenStopped(fraction))


@pytest.mark.technique("elas", check=1)
@given(st.floats(0, 1e6), st.sampled_from([1 / 10, 1 / 3, 1 / 2, 9 / 10, 1.0]))
def test_what_is_expected_is_the_rest_at_the_same_price(attained: float, fraction: float) -> None:
    (left,) = expected_service(np.array([attained]), np.array([fraction]))
    assert left == pytest.approx((attained / fraction) * (1 - fraction), abs=1e-6)
    assert expected_service(np.array([attained]), np.array([0.0])) == [attained]


@pytest.mark.technique("elas", check=1)
def test_a_job_that_reports_fast_progress_goes_past_one_that_was_served_less() -> None:
    """Both arrive at once on one GPU. After its first epoch of 100 seconds the first job has 900 to go by its report;
    the second one, which was not served, runs for half an hour, and then counts with more than that."""
    jobs = [Job("a", 0.0, 1, InEpochs(Fixed(1000.0), 10)), Job("b", 0.0, 1, InEpochs(Fixed(9000.0), 2))]
    outcome = replay(jobs, Cluster.uniform(1, 1), Elas((200.0, 950.0)), keep_log=True)
    # a reports at 100 and is in the second queue, b runs until it leaves the first one, at 300, and then is there too:
    # it goes on until it leaves the second, at 1050; a, with 900 and then less to go, ends before it
    times = [(entry.time, entry.changes.stop, [job for job, _ in entry.changes.start]) for entry in outcome.log]
    assert times[1:3] == [(100.0, (0,), [1]), (1050.0, (1,), [0])]
    assert outcome.completed.tolist() == [1950.0, 10000.0]


@given(st.integers(1, 12), st.integers(1, 1000))
@settings(max_examples=30, deadline=None)
def test_every_epoch_but_the_last_is_reported(epochs: int, work: int) -> None:
    outcome = replay(
        [Job("a", 0.0, 1, InEpochs(Fixed(float(work)), epochs))], Cluster.uniform(1, 1), Counting(epochs - 1)
    )
    assert outcome.completed[0] == pytest.approx(work)


@dataclass(frozen=True)
class Counting(Policy):
    """Runs all and is told of so many epochs by the time that all is done."""

    epochs: int = 0

    def init(self) -> int:
        return 0

    def decide(self, state: State, events: Sequence[Event], memory: int) -> tuple[Decision, int]:
        memory += sum(isinstance(event, Advanced) for event in events)
        assert state.active or memory == self.epochs
        return run_in_order(state, state.active), memory


@functools.cache
def mean_completion_time(policy: Policy, epochs: int) -> float:
    """One tenant of Philly with 21 GPUs: load 0.93."""
    jobs = read_philly(folder_of("pollux") / "traces" / "philly.csv", "103959", least_seconds=60)
    jobs = [replace(job, progress=InEpochs(job.progress, epochs)) for job in jobs] if epochs else jobs
    return replay(jobs, Cluster.uniform(21, 1), policy, Costs(restart=30.0)).mean_completion_time


@pytest.mark.long
@pytest.mark.technique("elas", check=2)
def test_reports_of_epochs_make_jobs_faster_than_attained_service_alone_on_philly() -> None:
    told = mean_completion_time(Elas(), 10)
    # Tiresias with the best of the limits 1, 4, 8, 16 and 32 GPU-hours
    assert mean_completion_time(TwoQueues(8 * 3600.0), 0) / told >= 1.15
    assert mean_completion_time(Fifo(), 0) / told >= 3

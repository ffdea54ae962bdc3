"""The virtual driver: what it counts adds up, what it refuses, and what becomes of jobs when hosts are lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Changed, Decision, diff
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job, Rate
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, Outage, replay
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Says(Policy):
    """A policy that decides what a function says."""

    what: Callable[[State], Decision] = field(default=lambda state: Decision())

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        return self.what(state), None


def jobs(*facts: tuple[float, float, float]) -> list[Job]:
    return [Job(f"job{i}", arrival, gpus, Fixed(work)) for i, (arrival, gpus, work) in enumerate(facts)]


instances = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 6), st.integers(1, 40)).map(
        lambda x: (float(x[0]), x[1], float(x[2]))
    ),
    min_size=1,
    max_size=12,
)


@given(instances, st.sampled_from([Fifo(), Fifo(True), Srtf(), Srtf(True)]), st.sampled_from([0.0, 2.5]))
@settings(max_examples=80, deadline=None)
def test_every_second_of_every_job_is_counted_once(
    facts: list[tuple[float, float, float]], policy: Policy, cost: float
) -> None:
    outcome = replay(jobs(*facts), Cluster.uniform(3, 2), policy, Costs(start=cost, restart=2 * cost))
    np.testing.assert_allclose(outcome.parts.sum(axis=0), outcome.completion_times, atol=1e-6)
    works = np.array([job.progress.work for job in outcome.jobs])
    np.testing.assert_allclose(outcome.parts[2:4].sum(axis=0), works, atol=1e-6)
    assert np.all(outcome.parts[1] <= cost * (1 + 2 * outcome.restarts) + 1e-6)  # less where preempted meanwhile
    assert np.all(outcome.parts[1] >= cost - 1e-6)
    held = outcome.parts[1:].sum(axis=0) * [job.gpus for job in outcome.jobs]
    np.testing.assert_allclose(outcome.attained, held, atol=1e-6)


def test_a_device_is_given_away_once_and_gangs_are_whole() -> None:
    cluster = Cluster.uniform(2, 2)
    slots = [Slot(0, 0), Slot(0, 1), Slot(1, 0)]
    wrong = {
        "has no 1 left": {0: Grant.of(slots[:2]), 1: Grant.of([slots[0], slots[2]])},
        "runs with 2": {0: Grant.of(slots[:1])},
        "a device twice": {0: Grant((slots[0], slots[0]))},
        "a share is above 0": {0: Grant((Slot(0, 0, 0.0), Slot(0, 1)))},
        "not there": {2: Grant.of(slots[:2])},
    }
    for words, grants in wrong.items():
        with pytest.raises(ClusterError, match=words):
            replay(jobs((0, 2, 5), (0, 2, 5), (9, 2, 5)), cluster, Says(lambda state, g=grants: Decision(g)))  # type: ignore[misc]


def test_a_policy_that_lets_jobs_wait_for_ever_is_named() -> None:
    with pytest.raises(ClusterError, match="waiting for ever: job0"):
        replay(jobs((0, 1, 5)), Cluster.uniform(1, 1), Says())


def test_jobs_of_a_lost_host_go_on_from_their_last_checkpoint() -> None:
    cluster, lost = Cluster.uniform(2, 1), [Outage(0, 7.0, 100.0)]
    for every, again in ((0.0, 7.0), (2.0, 1.0), (10.0, 7.0)):
        outcome = replay(jobs((0, 1, 10)), cluster, Fifo(), Costs(restart=3.0, checkpoint_every=every), lost)
        assert outcome.completed[0] == pytest.approx(10 + again + 3)
        assert outcome.restarts[0] == 1


def test_a_start_takes_longer_for_more_workers() -> None:
    costs = Costs(start=10.0, doubling=3.0)
    outcome = replay(jobs((0.0, 1, 5.0), (0.0, 4, 5.0)), Cluster.uniform(2, 4), Fifo(), costs)
    assert outcome.completed.tolist() == [15.0, 21.0]


def test_a_host_that_comes_back_is_used() -> None:
    outcome = replay(
        jobs((0, 1, 10)), Cluster.uniform(1, 1), Fifo(), Costs(checkpoint_every=1.0), [Outage(0, 4.0, 6.0)]
    )
    assert outcome.completed[0] == pytest.approx(12)
    assert outcome.parts[0][0] == pytest.approx(2)


@dataclass(frozen=True)
class Halved:
    """A job that is half as fast while another is on its device."""

    work: float

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        return Rate(0.5 if beside else 1.0, self.work)


def test_jobs_that_share_a_device_change_each_others_rates() -> None:
    both = [Job("a", 0.0, 0.5, Halved(10.0)), Job("b", 4.0, 0.5, Halved(3.0))]
    grant = Grant((Slot(0, 0, 0.5),))
    outcome = replay(both, Cluster.uniform(1, 1), Says(lambda state: Decision(dict.fromkeys(state.active, grant))))
    assert outcome.completed.tolist() == [13.0, 10.0]  # a: 4 alone, 6 seconds at half, 3 alone


@dataclass(frozen=True)
class Whole:
    """A job with parts that end at whole seconds, and are twice as fast with a batch of 2."""

    parts: tuple[float, ...]

    @property
    def work(self) -> float:
        return sum(self.parts)

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        ends = np.cumsum(self.parts)
        return Rate(2.0 if grant.batch == 2 else 1.0, float(ends[np.searchsorted(ends, done, "right")]), rounded=1.0)


@dataclass(frozen=True)
class InTens(Says):
    """The same every 10 s."""

    @property
    def every(self) -> float:
        return 10.0


def test_parts_end_at_whole_seconds_and_after_a_round_that_they_are_rounded_down_to() -> None:
    seen: list[tuple[float, list[int]]] = []

    def what(state: State) -> Decision:
        seen.append((state.now, list(state.active)))
        return Decision({job: Grant((Slot(job, 0),)) for job in state.active})

    parts = [(9.6,), (10.4,), (3.4, 3.4, 0.3), (2.5, 3.5, 40.0)]
    outcome = replay(
        [Job(f"job{i}", 0.0, 1, Whole(x)) for i, x in enumerate(parts)], Cluster.uniform(4, 1), InTens(what)
    )
    assert outcome.completed.tolist() == [10.0, 10.0, 6.0, 2 + 4 + 40.0]
    assert seen[:3] == [(0.0, [0, 1, 2, 3]), (10.0, [1, 3]), (20.0, [3])]  # 10.4 is in truth after 10
    assert len(seen) == 5
    np.testing.assert_allclose(outcome.parts.sum(axis=0), outcome.completion_times)


def test_another_batch_on_the_same_slots_costs_no_restart() -> None:
    def what(state: State) -> Decision:
        return Decision({0: Grant((Slot(0, 0),), batch=2 if state.now >= 20 else 1)})

    outcome = replay([Job("job", 0.0, 1, Whole((40.0,)))], Cluster.uniform(1, 1), InTens(what), Costs(4.0, 4.0))
    assert outcome.completed[0] == 4 + 16 + 12 and outcome.restarts[0] == 0


def test_another_share_of_the_same_device_costs_no_restart_and_changes_who_is_beside() -> None:
    def what(state: State) -> Decision:
        first, second = (0.75, 0.25) if state.now >= 8 else (0.5, 0.5)
        both = {0: Grant((Slot(0, 0, first),)), 1: Grant((Slot(0, 0, second),))}
        whole = {job: Grant((Slot(0, 0),)) for job in state.active}
        return Decision(
            {job: both[job] for job in state.active} if len(state.active) == 2 else whole,
            8.0 if state.now < 8 else None,
        )

    outcome = replay(jobs((0, 1, 10), (0, 1, 10)), Cluster.uniform(1, 1), Says(what), Costs(restart=100.0))
    assert outcome.completed.tolist() == [16.0, 20.0]  # 4 each; 6 at three quarters; 6 - 2 alone
    assert outcome.restarts.sum() == 0
    assert outcome.attained.tolist() == [10.0, 10.0]
    halves = [Job("a", 0.0, 1, Halved(10.0)), Job("b", 0.0, 1, Halved(4.0))]
    outcome = replay(halves, Cluster.uniform(1, 1), Says(what))
    assert outcome.completed.tolist() == [14.0, 8.0]  # at half, until the other is gone


@given(
    st.dictionaries(st.integers(0, 5), st.integers(0, 2)),
    st.dictionaries(st.integers(0, 5), st.integers(0, 2)),
    st.sets(st.integers(0, 5)),
)
def test_a_change_is_the_allocation_that_it_leads_to(
    base: dict[int, int], start: dict[int, int], stop: set[int]
) -> None:
    running, given_ = ({job: Grant((Slot(host, 0),)) for job, host in x.items()} for x in (base, start))
    whole = {job: grant for job, grant in running.items() if job not in stop} | given_
    changed = Changed(running, given_, stop)
    assert dict(changed) == whole and len(changed) == len(whole)
    one, other = diff(running, Decision(changed)), diff(running, Decision(whole))
    assert (one.stop, set(one.start), set(one.resize)) == (other.stop, set(other.start), set(other.resize))


def test_the_time_until_a_rate_changes_is_rounded_and_infinite_where_nothing_proceeds() -> None:
    assert Rate(2.0, 7.0).seconds(2.0) == 2.5
    assert Rate(2.0, 7.0, rounded=2.0).seconds(2.0) == 2.0
    assert Rate(2.0, 7.0, rounded=2.0).exact_seconds(2.0) == 2.5
    assert Rate(2.0, 7.0).seconds(8.0) == 0.0
    assert Rate(0.0, 7.0, rounded=1.0).seconds(2.0) == np.inf

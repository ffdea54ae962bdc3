"""Tiresias: queues by attained service."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Decision
from laconic.cluster.gittins import gittins_index
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.tiresias import Memory, Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Event, State
from tests.cluster.pollux_data import ALL, published, published_times, run
from tests.data import folder_of

facts = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(1, 30)), min_size=2, max_size=12)
AS_POLLUX_AUTHORS = Tiresias(by_entry=True, interval=60.0)


def jobs_of(made: Sequence[tuple[int, int, int]]) -> list[Job]:
    return [Job(f"job{i}", float(a), g, Fixed(float(w))) for i, (a, g, w) in enumerate(made)]


class Seen(NamedTuple):
    """A job at a decision."""

    job: int
    queue: int
    running: bool
    attained: float
    executed: float
    waited: float


@dataclass(frozen=True)
class Watched(Policy):
    """Tiresias, with its queues and order at every decision written down."""

    inner: Tiresias = field(default_factory=Tiresias)
    seen: list[tuple[float, list[Seen]]] = field(default_factory=list, compare=False)

    @property
    def every(self) -> float | None:
        return self.inner.every

    def init(self) -> Memory:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        decision, memory = self.inner.decide(state, events, memory)
        found = []
        for job in self.inner.order(state, memory).tolist():
            attained, executed = float(state.attained(job)), float(state.executed(job))
            waited = state.now - float(state.tables.first_start[job]) - executed
            found.append(Seen(job, int(memory.queue[job]), job in state.running, attained, executed, waited))
        self.seen.append((state.now, found))
        return decision, memory


@pytest.mark.technique("tiresias", check=1)
@given(facts)
@settings(max_examples=25, deadline=None)
def test_with_one_queue_it_is_first_in_first_out(made: list[tuple[int, int, int]]) -> None:
    single = [(arrival, 1, work) for arrival, _, work in made]
    for given_, same in ((single, Fifo()), (made, Fifo(backfill=True))):
        one, other = (
            replay(jobs_of(given_), Cluster.uniform(2, 2), policy, Costs(restart=3.0))
            for policy in (Tiresias(thresholds=()), same)
        )
        np.testing.assert_array_equal(one.first_start, other.first_start)
        np.testing.assert_array_equal(one.completed, other.completed)


@pytest.mark.technique("tiresias", check=1)
@given(facts)
@settings(max_examples=25, deadline=None)
def test_with_a_threshold_at_every_gpu_second_the_order_is_by_attained_service(
    made: list[tuple[int, int, int]],
) -> None:
    policy = Watched(Tiresias(thresholds=tuple(map(float, range(1, 200))), interval=1.0))
    replay(jobs_of(made), Cluster.uniform(2, 2), policy)
    for _, order in policy.seen:
        services = [seen.attained for seen in order]
        assert services == sorted(services)


@pytest.mark.technique("tiresias", check=1)
@given(facts, st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 2.0]))
@settings(max_examples=30, deadline=None)
def test_a_queue_index_falls_by_the_starvation_rule_alone(
    made: list[tuple[int, int, int]], starvation: float, interval: float
) -> None:
    policy = Watched(Tiresias((4.0, 20.0), starvation, interval=interval))
    replay(jobs_of(made), Cluster.uniform(2, 2), policy, Costs(restart=1.0))
    last: dict[int, int] = {}
    forgiven: dict[int, tuple[float, float]] = {}  # what had been executed and waited at the last promotion
    for _, order in policy.seen:
        for seen in order:
            if seen.queue < last.get(seen.job, 0):
                executed, waited = forgiven.get(seen.job, (0.0, 0.0))
                assert starvation and seen.queue == 0 and not seen.running
                assert seen.waited - waited >= starvation * (seen.executed - executed) - 1e-6
                forgiven[seen.job] = seen.executed, seen.waited
            last[seen.job] = seen.queue


def test_a_job_that_starves_is_promoted_as_soon_as_it_has_waited_long_enough() -> None:
    """The first runs for 10 s and is demoted at 4; the stream of short ones would keep it from the only GPU."""
    made = [(0, 1, 10)] + [(4 + 3 * i, 1, 3) for i in range(20)]
    for starvation, promoted in ((0.0, math.inf), (2.0, 12.0), (5.0, 24.0)):
        policy = Watched(Tiresias((4.0,), starvation))
        outcome = replay(jobs_of(made), Cluster.uniform(1, 1), policy)
        falls, last = [], 0
        for now, order in policy.seen:
            queue = next((seen.queue for seen in order if seen.job == 0), 0)
            falls += [now] if queue < last and outcome.completed[0] > now else []
            last = queue
        assert falls[:1] == pytest.approx([promoted] if promoted < math.inf else [])


def test_a_job_is_demoted_at_its_threshold_without_any_event() -> None:
    outcome = replay(jobs_of([(0, 2, 10), (1, 2, 3)]), Cluster.uniform(1, 2), Tiresias((8.0,)), Costs(restart=1.0))
    assert outcome.first_start.tolist() == pytest.approx([0.0, 4.0])  # 4 s of 2 GPUs
    assert outcome.completed.tolist() == pytest.approx([4 + 3 + 1 + 6, 7.0])


@pytest.mark.technique("tiresias", check=1)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(0, 20),
    st.sampled_from([1.0, 3.0, 10.0, math.inf]),
)
def test_the_gittins_index_is_the_supremum_over_quanta(services: list[int], attained: int, quantum: float) -> None:
    left = [s - attained for s in services if s > attained]
    best = 0.0
    for d in range(1, 31):
        if d <= quantum and left:
            chance = sum(x <= d for x in left) / len(left)
            best = max(best, chance / (sum(min(x, d) for x in left) / len(left)))
    index = gittins_index(sorted(map(float, services)), float(attained), quantum)
    assert index == (pytest.approx(best) if left else math.inf)


def test_with_gittins_whoever_is_likely_to_be_done_soon_goes_first_in_its_queue() -> None:
    """Jobs take 2 or 40 GPU-seconds. One that has had 3 takes 40; a new one is more likely to be done soon."""
    made = [(0, 1, w) for w in (2, 2, 2, 40)] + [(60, 1, 40), (63, 1, 2), (63, 1, 2)]
    means = {}
    for gittins in (False, True):
        outcome = replay(jobs_of(made), Cluster.uniform(1, 1), Tiresias(thresholds=(1000.0,), gittins=gittins))
        means[gittins] = outcome.completion_times[4:].tolist()
    assert means[False] == [40.0, 39.0, 41.0]
    assert means[True] == [44.0, 2.0, 4.0]


TENANTS = (("103959", 21, 1871, 3.0), ("0e4a51", 41, 1429, 1.5))


def times_faster_than_fifo(tenant: str, gpus: int, count: int) -> float:
    jobs = read_philly(folder_of("pollux") / "traces" / "philly.csv", tenant, least_seconds=60)
    assert len(jobs) == count
    work = sum(job.gpus * job.progress.work for job in jobs)
    assert work / max(job.arrival for job in jobs) / gpus == pytest.approx(0.93, abs=0.006)
    cluster = Cluster.uniform(gpus, 1)
    strict = replay(jobs, cluster, Fifo()).mean_completion_time
    return strict / replay(jobs, cluster, Tiresias(), Costs(restart=30.0)).mean_completion_time


@pytest.mark.technique("tiresias", check=2)
@pytest.mark.parametrize(("tenant", "gpus", "count", "faster"), TENANTS)
def test_on_phillys_tenants_it_is_faster_than_strict_fifo(tenant: str, gpus: int, count: int, faster: float) -> None:
    assert times_faster_than_fifo(tenant, gpus, count) >= faster


@pytest.mark.long
@pytest.mark.technique("tiresias", check=2)
def test_on_a_large_tenant_of_phillys_it_is_faster_than_strict_fifo() -> None:
    assert times_faster_than_fifo("b436b2", 61, 7393) >= 1.5


@pytest.mark.evidence("tiresias")
@pytest.mark.technique("tiresias", check=3)
def test_on_polluxs_workloads_every_job_takes_as_long_as_in_its_authors_simulator() -> None:
    means = []
    for workload in ALL:
        outcome = run(AS_POLLUX_AUTHORS, workload)
        means.append(outcome.mean_completion_time)
        np.testing.assert_array_equal(outcome.completion_times, published_times("tiresias", workload, outcome))
    assert means[5] == pytest.approx(3469.69375)
    assert np.mean(means) == pytest.approx(published("tiresias")["mean"]) == pytest.approx(4038.18, abs=0.01)


def test_at_half_the_load_they_do_too() -> None:
    for workload in (2, 7):
        outcome = run(AS_POLLUX_AUTHORS, workload, load="0.5")
        np.testing.assert_array_equal(outcome.completion_times, published_times("tiresias", workload, outcome, "0.5"))

"""Lyra: an exact knapsack, base demands that stay, servers that go back, and what loans and elasticity are worth."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Decision
from laconic.cluster.elastic import Elastic
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.knapsack import multiple_choice
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.lyra import INFERENCE, Loans, Lyra, reclaim
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Event, State
from tests.data import folder_of


def hosts(training: int, lent: int, gpus: int) -> Cluster:
    names = [Host(f"t{i}", gpus) for i in range(training)] + [Host(f"i{i}", gpus, rack=INFERENCE) for i in range(lent)]
    return Cluster(tuple(names))


def elastic(name: str, arrival: float, base: int, most: int, work: float) -> Job:
    speeds = tuple((i + 1) / base for i in range(most))
    return Job(name, arrival, base, Elastic(work, speeds), least=base, most=most)


items = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), min_size=1, max_size=4), min_size=1, max_size=5
)


@pytest.mark.technique("lyra", check=1)
@given(items, st.integers(0, 14))
@settings(max_examples=300, deadline=None)
def test_the_knapsack_equals_brute_force(facts: list[list[tuple[int, int]]], capacity: int) -> None:
    values, weights = [[[part[i] for part in item] for item in facts] for i in (0, 1)]
    found = multiple_choice(values, weights, capacity)

    def total(choices: Sequence[int], table: list[list[int]]) -> int:
        return sum(row[choice - 1] for row, choice in zip(table, choices, strict=True) if choice)

    assert total(found, weights) <= capacity
    best = max(
        total(choices, values)
        for choices in itertools.product(*(range(len(item) + 1) for item in facts))
        if total(choices, weights) <= capacity
    )
    assert total(found, values) == best


@pytest.mark.technique("lyra", check=1)
def test_left_over_gpus_go_where_they_save_most_time() -> None:
    """Two elastic jobs on one GPU each and two GPUs to spare, each could use both: 100 seconds are done 67 sooner with
    three, 60 seconds 40 sooner, but one each saves 50 and 30."""
    jobs = [elastic("a", 0.0, 1, 3, 100.0), elastic("b", 0.0, 1, 3, 60.0)]
    outcome = replay(jobs, hosts(2, 0, 2), Lyra(), keep_log=True)
    assert [len(grant.slots) for _, grant in outcome.log[0].changes.start] == [2, 2]
    assert outcome.completed.tolist() == [pytest.approx(30 + 40 / 3), 30.0]


@dataclass(frozen=True)
class Watched(Lyra):
    """Lyra, each of whose decisions is looked at."""

    def decide(self, state: State, events: Sequence[Event], memory: Loans) -> tuple[Decision, Loans]:
        before = {job: slots for job, slots in memory.base.items() if job in state.running}
        lent = set(memory.hosts)
        decision, memory = super().decide(state, events, memory)
        wanted = self.loaned[int(state.now // self.period) % len(self.loaned)]
        assert len(memory.hosts) == wanted
        used = {slot.host for grant in decision.grants.values() for slot in grant.slots}
        assert {host for host in used if state.cluster.hosts[host].rack} <= memory.hosts
        back = lent - memory.hosts
        for job, slots in before.items():
            if back & {slot.host for slot in slots}:
                assert decision.grants.get(job) != state.running[job]
            else:  # it stays, with the slots of its base demand
                assert set(slots) <= set(decision.grants[job].slots)
        return decision, memory


@pytest.mark.technique("lyra", check=1)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 3), st.integers(0, 4), st.integers(1, 40)), min_size=1, max_size=12
    ),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_base_demands_stay_and_servers_go_back(facts: list[tuple[int, int, int, int]], loaned: list[int]) -> None:
    jobs = [elastic(f"job{i}", float(a), base, base + more, float(w)) for i, (a, base, more, w) in enumerate(facts)]
    outcome = replay(jobs, hosts(2, 3, 2), Watched(tuple(loaned), 7.0), Costs(restart=0.5))
    assert (outcome.completed > 0).all()


@pytest.mark.technique("lyra", check=1)
def test_servers_that_cost_least_go_back_and_who_is_preempted_costs_nothing_elsewhere() -> None:
    # job 0 spans 3 servers, 1 and 2 one each; server 3 has none, servers 0 and 1 a third of job 0
    spans = {0: {0, 1, 2}, 1: {2}, 2: {4}}
    assert reclaim(1, [0, 1, 2, 3, 4], spans) == ([3], [])
    assert reclaim(2, [0, 1, 2, 3, 4], spans) == ([3, 0], [0])
    assert reclaim(3, [0, 1, 2, 3, 4], spans) == ([3, 0, 1], [0])  # 1 costs nothing any more
    assert reclaim(5, [0, 1, 2, 3, 4], spans) == ([3, 0, 1, 2, 4], [0, 1, 2])
    assert reclaim(1, [2, 4], {0: {0, 1, 4}, 2: {2}}) == ([4], [0])  # a third of a job before a whole one


@pytest.mark.technique("lyra", check=1)
def test_workers_on_loan_are_scaled_in_without_a_preemption() -> None:
    """Base demands are on training's server, workers beyond them on the loaned one, though the first has room."""
    jobs = [elastic("a", 0.0, 2, 3, 100.0), Job("b", 0.0, 1, Fixed(100.0))]
    outcome = replay(jobs, hosts(1, 1, 4), Lyra((1, 0), 20.0), keep_log=True)
    first, second = outcome.log[0].changes, outcome.log[1].changes
    assert [slot.host for slot in dict(first.start)[0].slots] == [0, 0, 1]
    assert second.stop == () and [[slot.host for slot in grant.slots] for _, grant in second.resize] == [[0, 0, 0]]


@functools.cache
def philly(loans: bool, stretches: bool, seed: int) -> Outcome:
    """One tenant of Philly on 20 GPUs, with up to 3 servers of 2 more on loan over the day; half of its jobs can use
    twice their GPUs, with proportional speed, as the paper takes it."""
    draws, jobs = random.Random(seed), list[Job]()
    for job in read_philly(folder_of("pollux") / "traces" / "philly.csv", "103959", least_seconds=60):
        grows = draws.random() < 0.5 and stretches
        jobs.append(elastic(job.name, job.arrival, job.workers, 2 * job.workers, job.progress.work) if grows else job)
    day = tuple(round(1.5 * (1 - math.cos(2 * math.pi * hour / 24))) for hour in range(24))
    assert min(day) == 0 and max(day) == 3
    return replay([replace(job) for job in jobs], hosts(10, 3, 2), Lyra(day if loans else ()), Costs(restart=30.0))


@pytest.mark.long
@pytest.mark.technique("lyra", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_loans_and_elastic_workers_make_jobs_faster_on_philly(seed: int) -> None:
    plain, both = philly(False, False, 0), philly(True, True, seed)
    assert plain.mean_completion_time / both.mean_completion_time >= 1.2
    assert philly(True, False, 0).mean_completion_time > both.mean_completion_time  # elasticity has its part

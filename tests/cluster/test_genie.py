"""GENIE: least laxity, no more GPUs than needed, a model that a light profile determines, and more tasks in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.data_parallel import DataParallel, fit
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.genie import Genie
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.state import Event, State
from tests.cluster.baselines import EarliestDeadline


@pytest.mark.technique("genie", check=1)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(0, 60)), min_size=1, max_size=12),
    st.integers(1, 3),
)
@settings(max_examples=150, deadline=None)
def test_with_one_gpu_each_the_order_is_that_of_least_laxity(facts: list[tuple[int, int, int]], gpus: int) -> None:
    facts = sorted(facts, key=lambda fact: fact[0])
    jobs = [
        Job(f"job{i}", float(a), 1, Fixed(float(w)), deadline=float(a + w + slack))
        for i, (a, w, slack) in enumerate(facts)
    ]
    outcome = replay(jobs, Cluster.uniform(1, gpus), Genie())
    # by hand: whenever a GPU is free, who of those that wait and can be in time has the least laxity; then the others
    free, left, now, starts = [0.0] * gpus, set(range(len(jobs))), 0.0, {}
    while left:
        there = [i for i in left if jobs[i].arrival <= now]
        server = min(range(gpus), key=lambda g: free[g])
        if not there or free[server] > now:
            ahead = [jobs[i].arrival for i in left if jobs[i].arrival > now] + [t for t in free if t > now]
            now = min(ahead)
            continue
        laxity = {i: jobs[i].deadline - now - jobs[i].progress.work for i in there}
        chosen = min(there, key=lambda i: (laxity[i] < 0, laxity[i], i))
        starts[chosen], free[server] = now, now + jobs[chosen].progress.work
        left.remove(chosen)
    assert outcome.first_start.tolist() == [starts[i] for i in range(len(jobs))]


def task(name: str, arrival: float, work: float, deadline: float, most: int = 8, between: float = 0.04) -> Job:
    return Job(name, arrival, 1, DataParallel(work, 1.0, 0.01, between), least=1, most=most, deadline=deadline)


@dataclass(frozen=True)
class Thrifty(Genie):
    """GENIE, each of whose grants is tried with fewer GPUs."""

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[int, float]
    ) -> tuple[Decision, dict[int, float]]:
        decision, memory = super().decide(state, events, memory)
        for number, grant in decision.grants.items():
            if number in state.running:
                continue
            job = state.jobs[number]

            def end(slots: Sequence[Slot], job: Job = job) -> float:
                return (
                    state.now + job.progress.work / job.progress.rate(0.0, Grant(tuple(slots)), state.cluster, ()).speed
                )

            if end(grant.slots) <= job.deadline:
                for fewer in range(1, len(grant.slots)):
                    assert end(grant.slots[:fewer]) > job.deadline
        return decision, memory


@pytest.mark.technique("genie", check=1)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(10, 200), st.floats(0.2, 3)), min_size=1, max_size=10))
@settings(max_examples=100, deadline=None)
def test_a_task_that_is_in_time_has_no_gpu_too_many(facts: list[tuple[int, int, float]]) -> None:
    jobs = [task(f"job{i}", float(a), float(w), a + w * slack) for i, (a, w, slack) in enumerate(facts)]
    replay(jobs, Cluster.uniform(4, 4), Thrifty())


@pytest.mark.technique("genie", check=1)
def test_who_is_in_time_with_two_gpus_gets_two_and_who_is_late_gets_the_fastest() -> None:
    jobs = [task("a", 0.0, 100.0, 60.0), task("b", 0.0, 100.0, 1.0, between=5.0)]
    outcome = replay(jobs, Cluster.uniform(2, 4), Genie(), keep_log=True)
    grants = dict(outcome.log[0].changes.start)
    assert len(grants[0].slots) == 2  # 100 iterations of 0.5 + 0.01 seconds
    assert len(grants[1].slots) == 4 and len(grants[1].by_host) == 1  # 5 and 6 would be slower over two hosts


@pytest.mark.technique("genie", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_light_profile_determines_the_model(seed: int) -> None:
    draws = np.random.default_rng(seed)
    true = DataParallel(100.0, *draws.uniform(0.1, 1.0, 3))
    profile = [
        (w, h, sum(true.seconds(w, h)) * draws.uniform(0.99, 1.01)) for w, h in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2))
    ]
    found = fit(100.0, profile)
    for workers, hosts in ((3, 1), (8, 2), (16, 4)):
        assert sum(found.seconds(workers, hosts)) == pytest.approx(sum(true.seconds(workers, hosts)), rel=0.05)


def poisson(seed: int, count: int = 300, load: float = 0.8, gpus: int = 16) -> list[Job]:
    """Tasks that ask for 1, 2 or 4 GPUs and can use up to 8, of 2 minutes to 2 hours on what they ask for, and that are
    to be done within 1.2 to 4 times that."""
    draws = np.random.default_rng(seed)
    found, asked = list[Job](), 0.0
    for i in range(count):
        workers, seconds = int(draws.choice([1, 2, 4])), float(np.exp(draws.uniform(np.log(120), np.log(7200))))
        model = DataParallel(1.0, 1.0, float(draws.uniform(0.0, 0.03)), float(draws.uniform(0.03, 0.2)))
        model = replace(model, work=seconds / sum(model.seconds(workers, 1)))
        asked += workers * seconds
        found.append(Job(f"job{i}", 0.0, workers, model, deadline=float(seconds * draws.uniform(1.2, 4))))
    times = np.cumsum(draws.exponential(asked / (load * gpus) / count, count))
    return [
        replace(job, arrival=float(t), deadline=float(t + job.deadline)) for job, t in zip(found, times, strict=True)
    ]


@pytest.mark.technique("genie", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_tasks_are_in_time_than_first_in_first_out_and_by_deadline(seed: int) -> None:
    jobs = poisson(seed)

    def in_time(policy: Policy, tasks: list[Job]) -> float:
        outcome = replay(tasks, Cluster.uniform(4, 4), policy)
        return float(np.mean(outcome.completed <= [job.deadline + 1e-6 for job in outcome.jobs]))

    swaf = in_time(Genie(), [replace(job, least=1, most=8) for job in jobs])
    assert swaf >= in_time(Fifo(), jobs) + 0.2
    assert swaf >= in_time(EarliestDeadline(), jobs)

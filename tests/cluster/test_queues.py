"""Policies of queues: first in first out, shortest remaining time first."""

from __future__ import annotations

import functools
import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from tests.data import folder_of

single = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=12)


@pytest.mark.technique("fifo", check=1)
@given(single, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_fifo_starts_are_those_of_lindleys_recursion(facts: list[tuple[int, int]], gpus: int) -> None:
    jobs = [Job(f"job{i}", float(a), 1, Fixed(float(w))) for i, (a, w) in enumerate(facts)]
    outcome = replay(jobs, Cluster.uniform(gpus, 1), Fifo())
    servers = [0.0] * gpus
    for i, (arrival, work) in enumerate(sorted(facts, key=lambda x: x[0])):
        start = max(float(arrival), heapq.heappop(servers))
        heapq.heappush(servers, start + work)
        assert outcome.first_start[i] == start


@pytest.mark.technique("fifo", check=1)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(1, 20), st.integers(0, 1)), min_size=2, max_size=14
    )
)
@settings(max_examples=60, deadline=None)
def test_nobody_starts_before_an_earlier_job_of_the_same_tenant(facts: list[tuple[int, int, int, int]]) -> None:
    jobs = [Job(f"job{i}", float(a), g, Fixed(float(w)), str(t)) for i, (a, g, w, t) in enumerate(facts)]
    outcome = replay(jobs, Cluster.uniform(2, 2), Fifo())
    for tenant in "01":
        starts = [start for job, start in zip(outcome.jobs, outcome.first_start, strict=True) if job.tenant == tenant]
        assert starts == sorted(starts)


def least_mean_completion(jobs: tuple[tuple[int, int], ...]) -> float:
    """The best that any preemptive schedule of one GPU does, over all of them: who runs in each second."""

    @functools.cache
    def total(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        there = [i for i, (arrival, _) in enumerate(jobs) if arrival <= now and left[i]]
        waiting = len(there)
        if not there:
            return total(now + 1, left)
        options = []
        for i in there:
            after = (*left[:i], left[i] - 1, *left[i + 1 :])
            options.append(total(now + 1, after))
        return waiting + min(options)

    return total(0, tuple(work for _, work in jobs)) / len(jobs)


@pytest.mark.technique("srtf", check=1)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_shortest_remaining_time_is_optimal_on_one_gpu(facts: list[tuple[int, int]]) -> None:
    jobs = [Job(f"job{i}", float(a), 1, Fixed(float(w))) for i, (a, w) in enumerate(facts)]
    outcome = replay(jobs, Cluster.uniform(1, 1), Srtf())
    assert outcome.mean_completion_time == pytest.approx(least_mean_completion(tuple(facts)))


@functools.cache
def of_tenant(policy: Policy, restart: float) -> Outcome:
    """A policy on one tenant of Philly with 21 GPUs."""
    trace = folder_of("pollux") / "traces" / "philly.csv"
    jobs = read_philly(trace, "103959", least_seconds=60)
    assert len(jobs) == 1871
    return replay(jobs, Cluster.uniform(21, 1), policy, Costs(restart=restart))


@pytest.mark.technique("fifo", check=2)
def test_backfill_at_least_halves_strict_fifos_completion_times() -> None:
    strict, filled = (of_tenant(policy, 0.0).mean_completion_time for policy in (Fifo(), Fifo(True)))
    assert strict / filled >= 2


@pytest.mark.technique("srtf", check=2)
def test_shortest_remaining_time_is_five_times_faster_than_strict_fifo() -> None:
    strict, shortest = of_tenant(Fifo(), 0.0), of_tenant(Srtf(), 30.0)
    assert strict.mean_completion_time / shortest.mean_completion_time >= 5
    assert np.all(shortest.restarts <= shortest.decisions)
    assert any(itertools.islice((r for r in shortest.restarts if r), 1))

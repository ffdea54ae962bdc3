"""MLFS: printed priorities, servers that are relieved, and a week of Philly with deadlines."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.learned.early_stop import Accuracy, stops
from laconic.cluster.learned.task_priority import Task, priorities
from laconic.cluster.learned.task_servers import Placed, nearest, relieve
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.mlfs import Mlfs, nearest_servers, train
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.cluster.room import Room
from laconic.errors import ClusterError
from tests.cluster.learned.sched2_setup import CLUSTER, traces
from tests.data import folder_of


@pytest.mark.technique("mlfs", check=1)
def test_priorities_are_the_printed_formulas_on_a_graph_of_tasks() -> None:
    """Two leaves, one that both wait for, a root, and the server."""
    tasks = [
        Task(10, 4.0, 2.0, 1.0, (1,)),
        Task(20, 3.0, 1.0, 0.0, (2, 3)),
        Task(30, 2.0, 0.5, 0.0),
        Task(40, 2.0, 0.25, 2.0),
        Task(0, 1.0, 1.0, 0.0, is_server=True),
    ]
    found = priorities(tasks, 2.0, (0.5, 0.3, 0.2))
    loss = [2.0 / 4 * 0.2 * size / 100 for size in (10, 20, 30, 40)]
    pressing = [0.3 / 4 + 0.3 / 2 + 0.35, 0.3 / 3 + 0.3, 0.3 / 2 + 0.6, 0.3 / 2 + 1.2 + 0.7]
    own = [0.3 * a + 0.7 * b for a, b in zip(loss, pressing, strict=True)]
    inner = own[1] + 0.8 * (own[2] + own[3])
    assert found[:4] == pytest.approx([own[0] + 0.8 * inner, inner, own[2], own[3]])
    assert found[4] == float("inf")
    assert priorities([Task(1, -1.0, 2.0, 0.0)], 1.0, ())[0] == pytest.approx(0.3 + 0.7 * 0.15)


@pytest.mark.technique("mlfs", check=1)
@pytest.mark.parametrize("seed", range(8))
def test_no_server_is_overloaded_unless_nobody_may_leave(seed: int) -> None:
    draws = np.random.default_rng(seed)
    tasks, count = 60, 5
    traffic = draws.random((tasks, tasks)) * (draws.random((tasks, tasks)) < 0.1)
    placed = Placed(
        draws.uniform(0.01, 0.2, (tasks, 3)), draws.choice(count, tasks, p=[0.3, 0.25, 0.2, 0.15, 0.1]),
        draws.random(tasks), traffic + traffic.T, count,
    )  # fmt: skip
    placed.demands *= 0.9 * count / placed.demands.sum(axis=0).max() * 0.8
    before, loads = placed.servers.copy(), placed.loads
    left = relieve(placed, lowest=0.1 if seed % 2 else 0.5)
    assert (loads >= 0.9).any() and left
    for server in range(count):
        there = np.flatnonzero(before == server)
        lowest = there[np.argsort(placed.priorities[there])][: int(np.ceil((0.1 if seed % 2 else 0.5) * len(there)))]
        gone = set(left) & set(there.tolist())
        assert gone <= set(lowest.tolist())
        if not (loads[server] >= 0.9).any():
            assert not gone
        if (placed.loads[server] >= 0.9).any():
            assert gone == set(lowest.tolist())  # nobody is left who may go


@pytest.mark.technique("mlfs", check=1)
def test_the_victim_and_the_server_are_those_nearest_to_an_ideal() -> None:
    demands = np.array([[0.5, 0.1], [0.3, 0.6], [0.3, 0.1], [0.1, 0.1]])
    traffic = np.zeros((4, 4))
    placed = Placed(demands, np.array([0, 0, 0, 1]), np.zeros(4), traffic, 3)
    assert relieve(placed, lowest=1.0) == [0]  # most of the first resource, least of the second
    assert placed.servers.tolist() == [2, 0, 0, 1]
    loads = np.array([[0.2, 0.95], [0.5, 0.5], [0.3, 0.3], [0.1, 0.6]])
    zero = np.zeros(4)
    assert nearest(loads, zero, zero) == 2
    assert nearest(loads, np.array([0.0, 0.9, 0.0, 0.0]), zero) == 1
    assert nearest(loads, zero, np.array([0.0, 0.0, 0.9, 0.0])) in (1, 3)
    assert nearest(np.ones((2, 1)), np.zeros(2), np.zeros(2)) is None
    grant = nearest_servers(Room(Cluster.uniform(3, 4)), 3)
    assert grant is not None and len(grant.by_host) == 1
    with pytest.raises(ClusterError, match="a place"):
        Placed(demands, np.zeros(3), np.zeros(4), traffic, 2)


def test_jobs_are_stopped_only_under_load_and_with_consent() -> None:
    jobs = {3: Accuracy(0.8, 0.7, 0.9, True), 4: Accuracy(0.8, 0.7, 0.9, False), 5: Accuracy(0.6, 0.7, 0.55, True),
            6: Accuracy(0.6, 0.7, 0.9, True)}  # fmt: skip
    assert stops(jobs, 0, 0.5) == []
    assert stops(jobs, 1, 0.5) == stops(jobs, 0, 0.95) == [3, 5]


@functools.cache
def week(number: int) -> list[Job]:
    """A week of Philly, thinned out to what 80 GPUs do in it, with deadlines at random."""
    jobs = read_philly(folder_of("pollux") / "traces" / "philly.csv", least_seconds=60)
    begin = number * 7 * 86400.0
    there = [job for job in jobs if begin <= job.arrival < begin + 7 * 86400 and job.workers <= 32]
    draws = np.random.default_rng(number)
    found: list[Job] = []
    busy = 0.0
    for i in draws.permutation(len(there)):
        work = min(there[i].progress.work, 3 * 86400.0)
        if busy + work * there[i].workers > 1.0 * 80 * 7 * 86400:
            break
        busy += work * there[i].workers
        deadline = there[i].arrival - begin + work * float(draws.uniform(1.1, 4)) + 600
        found.append(replace(there[i], arrival=there[i].arrival - begin, tenant="", deadline=deadline))
    return found


def misses(outcome: Outcome) -> int:
    return sum(end > job.deadline for end, job in zip(outcome.completed, outcome.jobs, strict=True))


@functools.cache
def result(policy: Policy, number: int) -> tuple[float, int]:
    outcome = replay(week(number), Cluster.uniform(20, 4), policy, Costs(restart=30.0))
    return outcome.mean_completion_time, misses(outcome)


@pytest.mark.long
@pytest.mark.technique("mlfs", check=2)
@pytest.mark.parametrize("number", [2, 3])
def test_a_week_of_philly_ends_sooner_and_in_time(number: int) -> None:
    (mean, late), (queue, behind), (_, least_attained) = (result(p, number) for p in (Mlfs(), Fifo(True), Tiresias()))
    assert mean < queue and late < behind
    assert late < least_attained


def with_deadlines(begin: int, end: int, count: int) -> list[list[Job]]:
    draws = np.random.default_rng(begin)
    return [
        [replace(j, deadline=j.arrival + j.progress.work * float(draws.uniform(1.1, 4)) + 600) for j in jobs]
        for jobs in traces(begin, end, count)
    ]


@pytest.mark.long
@pytest.mark.technique("mlfs", check=2)
def test_a_network_that_has_learned_is_about_as_good() -> None:
    learned = train(with_deadlines(0, 30_000, 4), CLUSTER, iterations=6)
    mean, _ = result(learned, 2)
    assert mean <= 1.05 * result(Mlfs(), 2)[0]

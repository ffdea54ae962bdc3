"""Jahani and others: the program's optimum is that of enumeration, and rent and tardiness cost less than in order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from laconic.cluster.cost.renting import DueJob, MachineType, cost_of, rent
from laconic.cluster.decision import Decision
from laconic.cluster.elastic import Elastic
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.jahani import Jahani
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.state import Event, State


def drawn(draws: np.random.Generator, count: int) -> tuple[list[DueJob], list[MachineType]]:
    types = [MachineType("small", 1, float(draws.uniform(0.5, 1))), MachineType("large", 2, float(draws.uniform(1, 3)))]
    jobs = []
    for _ in range(count):
        one = float(draws.uniform(100, 1000))
        faster = float(draws.uniform(1, 2))
        jobs.append(
            DueJob(
                ((one,), (one / faster, one / faster / float(draws.uniform(1.2, 2)))),
                float(draws.uniform(0.3, 3)) * one,
                float(draws.uniform(0.5, 5)),
            )
        )
    return jobs, types


@pytest.mark.technique("jahani", check=1)
@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_is_that_of_enumeration(seed: int) -> None:
    jobs, types = drawn(np.random.default_rng(seed), 3)
    nodes, wait, penalty = 2, 300.0, 2.0
    best = float("inf")
    for kinds in itertools.product((None, 0, 1), repeat=nodes):
        options = [None, *((n, g) for n, v in enumerate(kinds) if v is not None for g in range(1, types[v].gpus + 1))]
        for placed in itertools.product(options, repeat=len(jobs)):
            held = [sum(p[1] for p in placed if p and p[0] == n) for n in range(nodes)]
            if all(0 < held[n] <= types[v].gpus if v is not None else True for n, v in enumerate(kinds)):
                best = min(best, cost_of(jobs, types, kinds, placed, wait, penalty))
    found = rent(jobs, types, nodes, wait, penalty)
    assert found.cost == pytest.approx(best, rel=1e-6)
    for node, kind in enumerate(found.types):
        held = sum(where[1] for where in found.placed if where and where[0] == node)
        assert held <= (types[kind].gpus if kind is not None else 0)


def test_what_is_counted_by_hand() -> None:
    types = [MachineType("small", 1, 1.0), MachineType("large", 2, 3.0)]
    jobs = [DueJob(((100.0,), (50.0, 30.0)), 60.0, 2.0), DueJob(((80.0,), (40.0, 20.0)), 500.0, 1.0)]
    # both on one large node: rent until the second ends after 40 s; the first is in time
    assert cost_of(jobs, types, (1, None), ((0, 1), (0, 1)), 10.0, 2.0) == pytest.approx(120)
    # the first alone on a small one: 100 s of rent, 40 s late; the second waits, and is in time after 10 + 80 s
    assert cost_of(jobs, types, (0, None), ((0, 1), None), 10.0, 2.0) == pytest.approx(100 + 80)
    # the first waits, and would be late by 10 + 100 - 60 seconds, twice as dear
    assert cost_of(jobs, types, (None, None), (None, None), 10.0, 2.0) == pytest.approx(200)
    found = rent(jobs, types, 2, 10.0, 2.0)
    assert found.cost <= 120 and found.placed[0] is not None


PRICES = (1.0, 1.9, 3.5)  # of an hour with one, two and four GPUs


def nodes(count: int) -> Cluster:
    """Nodes of which each can be rented with one, two or four GPUs."""
    return Cluster(tuple(Host(f"{n}/{g}", g, f"g{g}", rack=str(n)) for n in range(count) for g in (1, 2, 4)))


def due_jobs(seed: int, count: int = 30) -> list[Job]:
    """Jobs of 10 minutes to 2 hours on one GPU, one every 6 minutes, due within 0.8 to 3 times that; being late for an
    hour costs 2 to 10 hours of a GPU."""
    draws, now, found = np.random.default_rng(seed), 0.0, list[Job]()
    for i in range(count):
        now += float(draws.exponential(360.0))
        work, gain = float(draws.uniform(600, 7200)), float(draws.uniform(0.7, 0.95))
        speeds = tuple(float(g**gain) for g in range(1, 5))
        due, weight = now + work * float(draws.uniform(0.8, 3)), float(draws.uniform(2, 10)) / 3600
        found.append(Job(f"job{i}", now, 1, Elastic(work, speeds), least=1, most=4, deadline=due, weight=weight))
    return found


def total_cost(outcome: Outcome, cluster: Cluster) -> float:
    """The rent of machines while a job is on them, and the price of tardiness."""
    late = sum(
        job.weight * max(end - job.deadline, 0.0) for job, end in zip(outcome.jobs, outcome.completed, strict=True)
    )
    running, rent_paid, last = dict[int, Grant](), 0.0, 0.0
    times = sorted({*(logged.time for logged in outcome.log), *outcome.completed.tolist()})
    changes = {logged.time: logged.changes for logged in outcome.log}
    for time in times:
        hosts = {grant.slots[0].host for grant in running.values()}
        racks = [cluster.hosts[host].rack for host in hosts]
        assert len(set(racks)) == len(racks)  # a node is one machine at a time
        rent_paid += sum(PRICES[host % 3] for host in hosts) * (time - last) / 3600
        last = time
        running = {job: grant for job, grant in running.items() if outcome.completed[job] > time}
        if time in changes:
            for job in changes[time].stop:
                running.pop(job, None)
            running |= dict((*changes[time].start, *changes[time].resize))
    return rent_paid + late


@dataclass(frozen=True)
class InOrder(Policy):
    """Jobs in an order, each on a node of its own as the cheapest machine with which it is in time, or the fastest."""

    by_deadline: bool = False

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        busy = {state.cluster.hosts[grant.slots[0].host].rack for grant in state.running.values()}
        free = [n for n in range(len(state.cluster.hosts) // 3) if str(n) not in busy]
        start = dict[int, Grant]()
        key = (lambda job: (state.jobs[job].deadline, job)) if self.by_deadline else (lambda job: (0.0, job))
        for job in sorted(state.waiting, key=key)[: len(free)]:
            about, node = state.jobs[job], free.pop(0)
            ends = [state.now + about.progress.work / about.progress.speeds[g - 1] for g in (1, 2, 4)]  # type: ignore[attr-defined]
            kind = next((k for k in range(3) if ends[k] <= about.deadline), 2)
            start[job] = Grant(tuple(Slot(3 * node + kind, d) for d in range((1, 2, 4)[kind])))
        return Decision.changing(state.running, start), None


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_rent_and_tardiness_are_a_quarter_less_than_in_order_and_less_than_by_deadline(seed: int) -> None:
    cluster, jobs = nodes(5), due_jobs(seed)

    def cost(policy: Policy) -> float:
        return total_cost(replay(jobs, cluster, policy, keep_log=True), cluster)

    mine = cost(Jahani(PRICES))
    assert mine <= 0.75 * cost(InOrder())
    assert mine <= 0.95 * cost(InOrder(by_deadline=True))

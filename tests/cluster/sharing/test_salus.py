"""Salus: memory is safe after every event, iterations are whole, short jobs need not wait for long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from laconic.cluster.decision import Decision
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.salus import Residents, Salus
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Outage, replay
from laconic.cluster.sharing.iterations import Iterations
from laconic.cluster.sharing.lanes import Lanes
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError

GB = 1e9


@pytest.mark.technique("salus", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_memory_is_safe_after_each_of_ten_thousand_events(seed: int) -> None:
    draws = np.random.default_rng(seed)
    lanes, needs, refused, shared, most = Lanes(16 * GB), dict[int, tuple[float, float]](), 0, 0, 0
    for number in range(10_000):
        if needs and draws.random() < 0.48:
            gone = int(draws.choice(list(needs)))
            lanes.leave(gone)
            del needs[gone]
        else:
            need = float(draws.uniform(0.05, 1.5) * GB), float(draws.uniform(0.2, 9) * GB)
            if lanes.admit(number, *need):
                needs[number] = need
            else:
                refused += 1
                assert sum(p for p, _ in needs.values()) + need[0] + lanes_of(lanes, needs) > 16 * GB - need[1]
        # whoever is next in every lane, all can run at once beside what all keep
        worst = sum(max(needs[job][1] for job in jobs) for jobs in lanes.members.values())
        assert sum(p for p, _ in needs.values()) + worst <= 16 * GB * (1 + 1e-12)
        assert sorted(job for jobs in lanes.members.values() for job in jobs) == sorted(needs)
        shared += any(len(jobs) > 1 for jobs in lanes.members.values())
        most = max(most, len(lanes.members))
    assert refused > 100 and shared > 1000 and most > 2


def lanes_of(lanes: Lanes, needs: dict[int, tuple[float, float]]) -> float:
    return sum(max(needs[job][1] for job in jobs) for jobs in lanes.members.values())


@pytest.mark.technique("salus", check=1)
def test_lanes_are_opened_joined_and_enlarged_in_this_order() -> None:
    lanes = Lanes(16.0)
    assert lanes.admit(0, 1.0, 4.0) and lanes.admit(1, 1.0, 6.0)
    assert list(lanes.members.values()) == [[0], [1]] and lanes.used_bytes == 12
    assert lanes.admit(2, 1.0, 3.5)  # no third lane of 3.5 fits beside 13; the smaller of those that hold it
    assert list(lanes.members.values()) == [[0, 2], [1]] and lanes.used_bytes == 13
    assert lanes.admit(3, 1.0, 8.0)  # the larger of two that are too small grows by 2
    assert list(lanes.members.values()) == [[0, 2], [1, 3]] and lanes.used_bytes == 16
    assert not lanes.admit(4, 0.1, 1.0)
    lanes.leave(3)
    assert lanes.used_bytes == 13
    with pytest.raises(ClusterError, match="already"):
        lanes.admit(1, 0.1, 0.1)


def mix(seed: int, count: int = 100) -> list[Job]:
    """Jobs of one GPU whose lengths spread over two decades."""
    draws = np.random.default_rng(seed)
    jobs, now = [], 0.0
    for i in range(count):
        seconds = float(draws.uniform(4, 9))
        length = 10 ** draws.uniform(1, 3)
        keeps, needs = draws.uniform(0.1, 0.6) * GB, draws.uniform(1, 7) * GB
        work = Iterations(max(round(length / seconds), 1), seconds)
        jobs.append(Job(f"job{i}", now, 1, work, gpu_memory_bytes=keeps + needs, gpu_persistent_bytes=keeps))
        now += float(draws.exponential(150))
    return jobs


GPU = Cluster((Host("host", 1, gpu_memory_bytes=16 * GB),))


@pytest.mark.technique("salus", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_shortest_remaining_iterations_halve_the_time_of_exclusive_fifo(seed: int) -> None:
    alone, shared = replay(mix(seed), GPU, Fifo()), replay(mix(seed), GPU, Salus())
    assert alone.mean_completion_time / shared.mean_completion_time >= 2
    assert shared.makespan <= alone.makespan * (1 + 1e-9)  # nothing is lost: the GPU is busy while there is work


@dataclass(frozen=True)
class Observed(Policy):
    """A Salus whose lanes are looked at whenever it decides: who shares one from the start has had equal time."""

    inner: Salus

    def init(self) -> Any:
        return self.inner.init(), []

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        residents, seen = memory
        longest = max(job.progress.seconds for job in state.jobs)  # type: ignore[attr-defined]
        decision, residents = self.inner.decide(state, events, residents)
        for lanes in residents.devices.values():
            for jobs in lanes.members.values():
                times = [float(state.executed(job)) * (1 / len(lanes.members)) for job in jobs]
                assert max(times) - min(times) <= longest * (1 + 1e-9)
                seen.append(len(jobs))
        assert state.now == 0 or max(seen) > 2
        return decision, (residents, seen)


@pytest.mark.technique("salus", check=2)
def test_fair_lanes_give_equal_time_within_an_iteration() -> None:
    jobs = [
        Job(f"job{i}", 0.0, 1, Iterations(40, 1 + 0.7 * i), gpu_memory_bytes=9 * GB, gpu_persistent_bytes=GB)
        for i in range(5)
    ]
    outcome = replay(jobs, GPU, Observed(Salus("fair")))
    assert outcome.restarts.min() > 5
    assert outcome.makespan == pytest.approx(sum(job.progress.work for job in jobs))


@pytest.mark.technique("salus", check=2)
def test_nobody_is_preempted_inside_an_iteration() -> None:
    long = Job("long", 0.0, 1, Iterations(3, 10.0), gpu_memory_bytes=12 * GB, gpu_persistent_bytes=GB)
    short = Job("short", 4.0, 1, Iterations(2, 1.0), gpu_memory_bytes=11 * GB, gpu_persistent_bytes=GB)
    outcome = replay([long, short], GPU, Salus())
    assert outcome.first_start.tolist() == [0.0, 10.0]
    assert outcome.completed.tolist() == [32.0, 12.0]
    beside = Job("beside", 4.0, 1, Iterations(2, 1.0), gpu_memory_bytes=2 * GB, gpu_persistent_bytes=GB)
    outcome = replay([long, beside], GPU, Salus())  # it fits into a lane of its own, at half the GPU
    assert outcome.first_start.tolist() == [0.0, 4.0]
    assert outcome.completed.tolist() == [32.0, 8.0]


def test_a_lost_host_gives_its_jobs_back_to_the_queue() -> None:
    cluster = Cluster(tuple(Host(f"host{i}", 1, gpu_memory_bytes=16 * GB) for i in range(2)))
    jobs = mix(3, 12)
    outcome = replay(jobs, cluster, Salus("fifo"), outages=[Outage(0, 300.0, 900.0)])
    assert np.all(np.isfinite(outcome.completed))
    early, late = (Job(name, at, 1, Iterations(2, 1.0)) for name, at in (("early", 0.0), ("late", 20.0)))
    outcome = replay([early, late], cluster, Salus(), outages=[Outage(0, 10.0, 90.0)])  # it is empty when it is lost
    assert outcome.completed.tolist() == [2.0, 22.0]
    with pytest.raises(ClusterError, match="needs several"):
        replay([Job("wide", 0.0, 2, Iterations(3, 1.0))], cluster, Salus())
    assert isinstance(Salus().init(), Residents)

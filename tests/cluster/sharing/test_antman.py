"""AntMan: coordinators find what a guaranteed job does not miss, and a cluster's gaps are filled without harm."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from laconic.cluster.decision import Decision
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.policies.antman import AntMan
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Outage, replay
from laconic.cluster.sharing.coordinator import Coordination, Footprint, coordinate, divide
from laconic.cluster.sharing.iterations import Iterations
from laconic.cluster.sharing.tgs import SharedGpu, Tenant
from laconic.cluster.sharing.throughput import Throughput
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from tests.data import folder_of

GB = 1e9


def queued(demand: float) -> Callable[[float], float]:
    """Mini-batch seconds of a job where operators wait in one queue."""
    return lambda allowed: 0.3 / SharedGpu(16 * GB).rates(Tenant(demand), Tenant(1.0), allowed)[0]


def partitioned(demand: float) -> Callable[[float], float]:
    """The same where the job gets what others may not launch."""
    return lambda allowed: 0.3 / Throughput.knee(demand).rate(1 - allowed)


@pytest.mark.technique("antman", check=1)
@pytest.mark.parametrize("model", [queued, partitioned])
@pytest.mark.parametrize("demand", [0.05, 0.3, 0.77, 1.0])
@pytest.mark.parametrize("tolerance", [0.02, 0.1])
def test_coordinators_find_the_spare_share_within_the_tolerance(
    model: Callable[[float], Callable[[float], float]], demand: float, tolerance: float
) -> None:
    seconds = model(demand)
    known, times = Coordination(), list[float]()
    for _ in range(300):
        times.append(seconds(known.allowed))
        known = coordinate(known, times[-1], tolerance, noise=1e-9, finest=0.0)
    assert max(times[1:]) <= times[0] * (1 + tolerance) * (1 + 1e-12)
    assert known.allowed == pytest.approx(1 - demand, abs=1e-6)
    if demand == 1.0:
        assert known.allowed < 3e-9 and max(times) > times[0]  # it was tried
    assert times[-1] == pytest.approx(times[0], rel=1e-6)


@pytest.mark.technique("antman", check=1)
def test_when_the_guaranteed_job_changes_others_stop_and_it_is_measured_anew() -> None:
    known = Coordination()
    for demand in (0.4, 0.8, 0.3):
        seconds = partitioned(demand)
        scale = 1 / demand  # its mini-batches change, too
        stopped = False
        for _ in range(200):
            known = coordinate(known, scale * seconds(known.allowed))
            stopped |= known.allowed == 0
        assert stopped or demand == 0.4
        assert known.allowed == pytest.approx(1 - demand, abs=0.01)
    settled = coordinate(known, scale * seconds(known.allowed))
    assert settled == known and not known.raised
    with pytest.raises(ClusterError, match="below the tolerance"):
        coordinate(known, 1.0, 0.1, 0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_allowed_is_divided_by_what_progresses_most(seed: int) -> None:
    draws = np.random.default_rng(seed)
    profiles = [Throughput((0.25, 0.75), (r, r + float(draws.uniform(0, r)))) for r in draws.uniform(1, 3, 3)]
    for allowed in (0.0, 0.2, 0.5, 0.9, 1.0):
        found = divide(allowed, profiles)
        best = max(
            sum(p.rate(0.05 * i) / p.rates[-1] for p, i in zip(profiles, shares, strict=True))
            for shares in itertools.product(range(16), repeat=3)
            if 0.05 * sum(shares) <= allowed + 1e-9
        )
        assert sum(p.rate(s) / p.rates[-1] for p, s in zip(profiles, found, strict=True)) >= best - 1e-9
        assert sum(found) <= allowed + 1e-12
    assert divide(1.0, [Throughput.knee(0.2), Throughput.knee(0.5)]) == [0.2, 0.5]


def test_caches_are_given_back_before_tensors_leave_and_come_back_last() -> None:
    job = Footprint(6 * GB, 3 * GB)
    seen = [job.within(limit * GB) for limit in (10, 8, 6, 3, 0, 7)]
    assert [(f.on_gpu / GB, f.kept / GB, f.on_host / GB) for f in seen] == [
        (6, 3, 0), (6, 2, 0), (6, 0, 0), (3, 0, 3), (0, 0, 6), (6, 1, 0),
    ]  # fmt: skip
    assert [f.speed(20.0) for f in seen] == [1, 1, 1, 1 / 10.5, 1 / 20, 1]


def busy(name: str, arrival: float, gpus: int, seconds: float, share: float, tenant: str, **more: Any) -> Job:
    return Job(name, arrival, gpus, Iterations(1, seconds, Throughput.knee(share)), tenant, utilisation=share, **more)


def test_a_guaranteed_job_lands_on_a_used_gpu_and_the_other_gives_way_at_once() -> None:
    jobs = [busy("spare", 0.0, 1, 100.0, 0.5, "b"), busy("own", 20.0, 1, 1000.0, 0.6, "a")]
    outcome = replay(jobs, Cluster.uniform(1, 1), AntMan((0, 1)), keep_log=True)
    grants = next(dict((*e.changes.start, *e.changes.resize)) for e in outcome.log if e.time == 20.0)
    assert grants[0].gpus < 1e-5 and grants[1].gpus > 1 - 1e-5
    assert outcome.completed[1] == pytest.approx(1020, rel=0.01) and outcome.restarts.sum() == 0
    slow = 80 / (0.4 / 0.5)  # what the spare share makes of it
    assert 20 + slow < outcome.completed[0] < 20 + 1.6 * slow


def test_opportunistic_jobs_are_promoted_where_they_are_and_memory_is_the_guaranteed_jobs() -> None:
    host = Host("host", 2, gpu_memory_bytes=16 * GB)
    first = [busy(f"a{i}", 0.0, 1, 500.0, 0.8, "a") for i in range(2)]
    outcome = replay([*first, busy("a2", 1.0, 1, 500.0, 0.05, "a")], Cluster((host,)), AntMan((2,)))
    assert outcome.restarts.sum() == 0 and outcome.completed[2] < 600
    three = [busy("a", 0.0, 1, 500.0, 0.8, "a"), busy("b", 0.0, 1, 300.0, 0.8, "a"), busy("c", 1.0, 1, 600.0, 0.3, "a")]
    outcome = replay(three, Cluster.uniform(1, 3), AntMan((2,)), keep_log=True)
    assert outcome.restarts.sum() == 0  # c becomes guaranteed at 300 where it is, though an earlier GPU is free
    jobs = [
        busy("spare", 0.0, 1, 300.0, 0.3, "b", gpu_memory_bytes=10 * GB),
        busy("own", 10.0, 1, 900.0, 0.3, "a", gpu_memory_bytes=12 * GB),
    ]
    one = Cluster((replace(host, gpus=1),))
    spilled = replay(jobs, one, AntMan((0, 1)))
    fits = replay([replace(jobs[0], gpu_memory_bytes=4 * GB), jobs[1]], one, AntMan((0, 1)))
    assert spilled.completed[1] == pytest.approx(fits.completed[1], rel=0.02)
    assert fits.completed[0] < 450 and spilled.completed[0] > 910
    full = [busy("own", 0.0, 1, 900.0, 0.3, "a", gpu_memory_bytes=12 * GB), replace(jobs[0], arrival=10.0)]
    assert replay(full, one, AntMan((1, 0))).first_start[1] == pytest.approx(900)  # it does not fit beside
    crowded = [busy("own", 0.0, 1, 900.0, 0.95, "a"), busy("spare", 10.0, 1, 50.0, 0.3, "b")]
    assert replay(crowded, one, AntMan((1, 0))).first_start[1] == pytest.approx(900)


def test_a_lost_host_sends_its_jobs_elsewhere() -> None:
    jobs = [busy(f"job{i}", 0.0, 1, 200.0, 0.5, "ab"[i % 2]) for i in range(6)]
    outcome = replay(jobs, Cluster.uniform(2, 2), AntMan((2, 1)), outages=[Outage(0, 50.0, 5000.0)])
    assert np.all(np.isfinite(outcome.completed)) and outcome.makespan < 1500


@dataclass(frozen=True)
class Watched(Policy):
    """A policy that is watched: what every job has done, at each decision."""

    inner: Policy
    seen: tuple[list[tuple[float, np.ndarray]], ...] = ([],)

    def init(self) -> Any:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        self.seen[0].append((state.now, state.done(np.arange(len(state.jobs)))))
        return self.inner.decide(state, events, memory)


@functools.cache
def everyone() -> list[Job]:
    return sorted(read_philly(folder_of("pollux") / "traces" / "philly.csv", None, 60), key=lambda job: job.arrival)


def two_classes(seed: int, begin: int, own: float) -> tuple[list[Job], int]:
    """Return 300 jobs in a row of Philly's, some of which are a tenant's with a quota, and the most GPUs that these
    would hold at a time if none waited."""
    part = [job for job in everyone()[begin:] if job.workers <= 4][:300]
    draws, jobs, changes = random.Random(seed), list[Job](), list[tuple[float, int]]()
    for job in part:
        share, is_own, at = draws.uniform(0.2, 0.9), draws.random() < own, job.arrival - part[0].arrival
        jobs.append(busy(job.name, at, job.workers, job.progress.work, share, "own" if is_own else "spare"))
        changes += [(at, job.workers), (at + job.progress.work, -job.workers)] if is_own else []
    return jobs, max(itertools.accumulate(workers for _, workers in sorted(changes)))


@pytest.mark.long
@pytest.mark.technique("antman", check=2)
@pytest.mark.parametrize(
    ("seed", "begin"), [(0, 40_000), (1, 40_000), (2, 20_000), (3, 60_000), (4, 30_000), (5, 50_000)]
)
def test_gaps_of_philly_are_filled_and_guaranteed_jobs_do_not_notice(seed: int, begin: int) -> None:
    """Of the jobs, as they come, one in twenty is within a quota of all GPUs, which are as many hosts of four as these
    need at most; the others have none. What was delivered is judged until the last job was submitted."""
    jobs, most = two_classes(seed, begin, own=1 / 20)
    cluster = Cluster.uniform(math.ceil(most / 4), 4)
    jobs = [*(busy(name, 0.0, 1, 1.0, 0.5, name) for name in ("own", "spare")), *jobs]  # tenants in this order
    policy, watched = AntMan((cluster.gpus, 0)), Watched(AntMan((cluster.gpus, 0)), ([],))
    both = replay(jobs, cluster, watched)
    alone = replay([job for job in jobs if job.tenant == "own" or job.name == "spare"], cluster, policy)
    own_of = {name: [job.tenant == "own" for job in run.jobs] for name, run in (("both", both), ("alone", alone))}
    before = alone.completion_times[own_of["alone"]].mean()
    assert both.completion_times[own_of["both"]].mean() <= 1.03 * before
    end = jobs[-1].arrival
    done = next(done for now, done in reversed(watched.seen[0]) if now <= end)
    used = done * np.array([job.workers * job.utilisation for job in both.jobs])
    is_own = np.array(own_of["both"])
    assert used[~is_own].sum() >= 0.5 * (cluster.gpus * end - used[is_own].sum())

"""Gandiva: equal turns, packs that pay by what was measured, early feedback, and jobs that move."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from laconic.cluster.decision import Decision
from laconic.cluster.elastic import Elastic
from laconic.cluster.epochs import InEpochs
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.gandiva import Gandiva, Introspection
from laconic.cluster.policy import Policy
from laconic.cluster.readers.gavel import KINDS, read_gavel, read_gavel_pairs
from laconic.cluster.replay import Costs, Outage, replay
from laconic.cluster.sharing.pairs import Paired
from laconic.cluster.state import Advanced, Event, State
from laconic.errors import ClusterError
from tests.data import folder_of


@dataclass(frozen=True)
class Watched(Policy):
    """A policy that is watched: at each decision what every job has done, and when each ended its first epoch."""

    inner: Policy

    def init(self) -> Any:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        SEEN.append((state.now, state.done(np.arange(len(state.jobs)))))
        for event in events:
            if isinstance(event, Advanced):
                FIRST.setdefault(event.job, state.now)
        decision, memory = self.inner.decide(state, events, memory)
        MEMORIES[:] = [memory]
        return decision, memory


SEEN: list[tuple[float, np.ndarray]] = []
FIRST: dict[int, float] = {}
MEMORIES: list[Any] = []


def watched(jobs: Sequence[Job], cluster: Cluster, policy: Policy, costs: Costs | None = None, **more: Any) -> Any:
    SEEN.clear()
    FIRST.clear()
    return replay(jobs, cluster, Watched(policy), costs, **more)


@pytest.mark.technique("gandiva", check=1)
@pytest.mark.parametrize(("count", "cost"), [(2, 0.0), (3, 0.5), (7, 1.0)])
def test_equal_jobs_get_equal_turns_and_only_switching_is_lost(count: int, cost: float) -> None:
    jobs = [Job(f"job{i}", 0.0, 1, Fixed(1800.0)) for i in range(count)]
    outcome = watched(jobs, Cluster.uniform(1, 1), Gandiva(packs=False), Costs(restart=cost))
    for now, done in SEEN:
        if now < outcome.completed.min():
            assert done.max() - done.min() <= 60 * (1 + 1e-9)
            assert done.max() <= now / count + 60
    switches = outcome.restarts.sum()
    assert switches >= 1800 / 60 * count - count
    assert outcome.makespan == pytest.approx(1800 * count + cost * switches)
    assert outcome.parts[1].sum() == pytest.approx(cost * switches)


def gavel_mix(seed: int, count: int) -> list[Job]:
    """Jobs of Gavel's kinds that take three hours alone on a V100."""
    path = folder_of("gavel") / "simulation_throughputs.json"
    alone, pairs = read_gavel(path), read_gavel_pairs(path)
    draws, jobs = random.Random(seed), list[Job]()
    for i in range(count):
        kind = draws.choice(KINDS)
        progress = Paired(10_800 * alone[kind, 1]["v100"], alone[kind, 1], pairs[kind, 1])
        jobs.append(Job(f"job{i}", 60.0 * i, 1, progress, kind=kind))
    return jobs


@pytest.mark.technique("gandiva", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_packs_that_are_kept_pay_and_the_cluster_does_more_by_them(seed: int) -> None:
    jobs, cluster = gavel_mix(seed, 24), Cluster.uniform(2, 4, "v100")
    rates = [job.progress for job in jobs]
    done: list[float] = []
    for packs in (False, True):
        watched(jobs, cluster, Gandiva(packs=packs), Costs(restart=0.5))
        now = max(time for time, _ in SEEN if time <= 10_000)
        work = next(work for time, work in SEEN if time == now)
        done.append(sum(w / rate.alone["v100"] for w, rate in zip(work, rates, strict=True)) / now)  # type: ignore[attr-defined]
    assert done[0] <= 8 < done[1]  # GPUs' worth of work; without packs, no more than there are GPUs
    memory: Introspection = MEMORIES[0]

    def together(one: int, other: int) -> float:
        return sum(
            rates[a].beside["v100"][jobs[b].kind] / rates[a].alone["v100"]
            for a, b in ((one, other), (other, one))  # type: ignore[attr-defined]
        )

    assert len(memory.kept) >= 5 and memory.refused
    for one, other in memory.kept:
        assert memory.kept[one, other] == pytest.approx(together(one, other)) and together(one, other) > 1
    for one, other in memory.refused:
        assert together(one, other) <= 1


@pytest.mark.technique("gandiva", check=2)
def test_28_of_100_pairs_of_a_v100_pay() -> None:
    path = folder_of("gavel") / "simulation_throughputs.json"
    alone, pairs = read_gavel(path), read_gavel_pairs(path)
    sums = {
        (workers, *sorted((kind, other))): speed / alone[kind, workers]["v100"]
        + pairs[other, workers]["v100"][kind] / alone[other, workers]["v100"]
        for (kind, workers), table in pairs.items()
        for other, speed in table["v100"].items()
    }
    assert len(sums) == 921 and np.mean([total > 1 for total in sums.values()]) == pytest.approx(0.28, abs=0.005)


@pytest.mark.technique("gandiva", check=3)
@pytest.mark.parametrize(("hours", "cost"), [(0.5, 1.0), (1.5, 0.5)])
def test_trials_report_early(hours: float, cost: float) -> None:
    jobs = [Job(f"trial{i}", 0.0, 1, InEpochs(Fixed(hours * 3600), 20)) for i in range(40)]
    means: list[float] = []
    for policy in (Fifo(), Gandiva()):
        watched(jobs, Cluster.uniform(1, 4), policy, Costs(restart=cost))
        assert len(FIRST) == 40
        means.append(sum(FIRST.values()) / 40)
    assert means[0] / means[1] >= 4


def test_those_who_use_least_are_packed_first_and_memory_is_kept() -> None:
    fast = Paired(6000.0, {"": 1.0}, {"": {"x": 0.8}})
    jobs = [
        Job(f"job{i}", 0.0, 1, fast, kind="x", utilisation=u, gpu_memory_bytes=b)
        for i, (u, b) in enumerate([(0.9, 4.0), (0.2, 9.0), (0.5, 6.0), (0.3, 8.0)])
    ]
    watched(jobs, Cluster((Host("host", 1, gpu_memory_bytes=15.0),)), Gandiva())
    assert list(MEMORIES[0].kept) == [(1, 2), (0, 3)]  # 1 and 3 are the least busy and do not fit
    with pytest.raises(ClusterError, match="in pairs"):
        fast.rate(0.0, Gandiva().init(), Cluster.uniform(1, 1), jobs[:2])  # type: ignore[arg-type]


def test_a_pack_has_turns_for_both_so_that_a_third_job_loses_nothing() -> None:
    paired = Paired(9000.0, {"": 1.0}, {"": {"a": 0.9}})
    jobs = [Job(f"a{i}", 0.0, 1, paired, kind="a", utilisation=0.1) for i in range(2)]
    jobs.append(Job("b", 0.0, 1, Paired(9000.0, {"": 1.0}, {"": {}}), kind="b"))
    watched(jobs, Cluster.uniform(1, 1), Gandiva())
    done = next(done for now, done in SEEN if now >= 7200)
    assert done[2] == pytest.approx(2400, abs=120)
    assert done[:2] == pytest.approx([0.9 * 4800] * 2, abs=200)


def test_servers_have_affinities_and_jobs_move_to_free_ones() -> None:
    cluster = Cluster.uniform(3, 4)
    sizes = [1, 2, 1, 2, 4, 1]
    jobs = [Job(f"job{i}", float(i), g, Fixed(100.0 if i else 10.0)) for i, g in enumerate(sizes)]
    outcome = replay(jobs, cluster, Gandiva(), keep_log=True)
    first = {job: grant.by_host for entry in outcome.log for job, grant in entry.changes.start}
    assert first == {i: ((host, sizes[i]),) for i, host in enumerate([0, 1, 0, 1, 2, 0])}
    # two gangs of four on one host; the second moves as soon as another host is free
    four = [Job(f"job{i}", float(i), 4, Fixed(work)) for i, work in enumerate((300.0, 100.0, 300.0))]
    outcome = replay(four, Cluster.uniform(2, 4), Gandiva())
    assert outcome.completed[1] == 101.0 and outcome.makespan < 400


def test_a_gang_that_waits_spreads_and_is_brought_together_by_moving_a_smaller_one() -> None:
    cluster = Cluster.uniform(2, 4)
    jobs = [Job(f"one{i}", 0.0, 1, Fixed(50.0 if i in (1, 2, 5, 6) else 1000.0)) for i in range(8)]
    jobs.append(Job("gang", 10.0, 4, Fixed(100.0)))
    outcome = replay(jobs, cluster, Gandiva(), Costs(restart=1.0), keep_log=True)
    gang = next(job for job, about in enumerate(outcome.jobs) if about.name == "gang")
    grants = [grant for e in outcome.log for job, grant in (*e.changes.start, *e.changes.resize) if job == gang]
    assert grants and all(len(grant.by_host) == 1 for grant in grants)
    assert outcome.first_start[gang] == 50.0
    assert sum(outcome.restarts) == 2  # two jobs of one GPU made way


def test_idle_gpus_are_lent_to_an_elastic_job_and_given_back_at_once() -> None:
    elastic = Job("elastic", 0.0, 1, Elastic(100.0, (1.0, 2.0, 3.0, 4.0)), least=1, most=4)
    outcome = replay([elastic, Job("other", 10.0, 2, Fixed(1000.0))], Cluster.uniform(1, 4), Gandiva())
    assert outcome.first_start[1] == 10.0
    assert outcome.completed[0] == pytest.approx(40.0)  # 10 s with four GPUs, 30 s with two


def test_jobs_of_a_lost_host_find_their_turns_elsewhere() -> None:
    jobs = [Job(f"job{i}", 0.0, 1, Fixed(300.0)) for i in range(6)]
    outcome = replay(jobs, Cluster.uniform(2, 2), Gandiva(), outages=[Outage(0, 100.0, 2000.0)])
    assert np.all(np.isfinite(outcome.completed)) and outcome.makespan < 1100


@functools.cache
def mixed(seed: int) -> tuple[Job, ...]:
    draws = random.Random(seed)
    return tuple(
        Job(f"job{i}", draws.uniform(0, 2000), draws.choice([1, 1, 2, 3, 4, 6, 8]), Fixed(draws.uniform(30, 900)))
        for i in range(40)
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gangs_of_any_size_are_served_and_no_work_is_lost(seed: int) -> None:
    cluster = Cluster(tuple(Host(f"h{i}", n) for i, n in enumerate((4, 4, 2, 6))))
    outcome = replay(mixed(seed), cluster, Gandiva(packs=False), Costs(restart=0.5))
    works = [job.progress.work for job in outcome.jobs]
    np.testing.assert_allclose(outcome.parts[2:4].sum(axis=0), works)
    outcome = replay(mixed(seed), cluster, Gandiva(), Costs(restart=0.5))
    assert outcome.mean_completion_time < replay(mixed(seed), cluster, Fifo()).mean_completion_time

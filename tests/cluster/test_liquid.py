"""Liquid: estimates are kept, traffic stays near, and a batch of jobs is placed no worse than one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.contention import Running
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.liquid import Liquid, Usage
from laconic.cluster.policy import Policy
from laconic.cluster.racks import tree_of_racks
from laconic.cluster.replay import replay
from laconic.cluster.resource_needs import Features, Needs, NeedsModel, asking_for
from laconic.cluster.sending import OnLinks, Sending
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from laconic.network.graph import Graph


def two_racks(hosts: int = 4, gpus: int = 4, memory: float = math.inf) -> Cluster:
    there = tuple(
        Host(f"r{r}h{h}", gpus, rack=str(r), gpu_memory_bytes=memory, cpu_milli=8000)
        for r in range(2)
        for h in range(hosts)
    )
    return Cluster(there, tree_of_racks(there, 10e9, oversubscribed=4.0))


def across_racks(outcome: Outcome, cluster: Cluster) -> float:
    """The bytes that left racks."""
    assert isinstance(cluster.network, Graph)
    up = [link for link, (_, end) in enumerate(cluster.network.ends.tolist()) if end == len(cluster.hosts)]
    found = 0.0
    for entry in outcome.log:
        for job, grant in entry.changes.start:
            progress = outcome.jobs[job].progress
            assert isinstance(progress, Sending)
            found += progress.work * float(progress.loads(grant, cluster)[up].sum())
    return found


def trace(seed: int, window: float = 0.0, count: int = 50) -> list[Job]:
    """All-reduce and server jobs of 1 to 8 workers; with a window, they are submitted at its ends."""
    draws, found, now = np.random.default_rng(seed), [], 0.0
    for i in range(count):
        workers, pattern = int(draws.choice([1, 2, 4, 6, 8])), str(draws.choice(["ring", "star"]))
        steps, compute, nbytes = draws.integers(100, 800), draws.uniform(0.2, 0.6), draws.uniform(50e6, 400e6)
        arrival = math.ceil(now / window) * window if window else now
        found.append(Job(f"job{i}", arrival, workers, Sending(float(steps), float(compute), float(nbytes), pattern)))
        now += float(draws.exponential(30.0))
    return found


@dataclass(frozen=True)
class AtRandom(Policy):
    """Free devices at random, drawn again where a link or a memory forbids them."""

    seed: int = 0

    def init(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def decide(
        self, state: State, events: Sequence[Event], memory: np.random.Generator
    ) -> tuple[Decision, np.random.Generator]:
        del events
        usage, start = Usage(state), dict[int, Grant]()
        for number in state.waiting:
            job = state.jobs[number]
            for _ in range(20):
                free = np.argwhere(usage.room.free >= job.share - 1e-9).tolist()
                if len(free) < job.workers:
                    break
                chosen = memory.permutation(len(free))[: job.workers].tolist()
                grant = Grant.of(Slot(*free[place], job.share) for place in chosen)
                if usage.fits(job, grant):
                    usage.take(job, grant)
                    start[number] = grant
                    break
        return Decision.changing(state.running, start), memory


@dataclass(frozen=True)
class Watched(Liquid):
    """Liquid, of each of whose decisions the estimates are added up."""

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        decision, memory = super().decide(state, events, memory)
        assert isinstance(state.cluster.network, Graph)
        links = np.zeros(len(state.cluster.network.capacities))
        held, kept = np.zeros((8, 4)), np.zeros((8, 4))
        for number, grant in decision.grants.items():
            job = state.jobs[number]
            if isinstance(job.progress, Sending):
                alone = job.progress.rate(0.0, grant, state.cluster, ()).speed
                links += job.progress.loads(grant, state.cluster) * alone
            for host, device, share in grant.slots:
                held[host, device] += share
                kept[host, device] += job.gpu_memory_bytes
        assert np.all(links <= state.cluster.network.capacities * (1 + 1e-6))
        assert held.max() <= 1 + 1e-6 and kept.max() <= 16e9
        return decision, memory


@pytest.mark.technique("liquid", check=1)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 5.0]))
@settings(max_examples=15, deadline=None)
def test_no_estimate_exceeds_a_link_a_memory_or_a_gpu(seed: int, window: float) -> None:
    draws, found = np.random.default_rng(seed), []
    for i in range(14):
        gpus = float(draws.choice([0.3, 0.6, 1, 2, 5, 9, 12]))
        progress = Sending(20.0, 0.1, float(draws.uniform(1e7, 1e9)), str(draws.choice(["ring", "star"])), min(gpus, 1))
        memory = float(draws.uniform(2e9, 12e9))
        found.append(Job(f"job{i}", float(draws.uniform(0, 20)), gpus, progress, gpu_memory_bytes=memory))
    outcome = replay(found, two_racks(memory=16e9), Watched(window=window, tries=10), contention=OnLinks())
    assert (outcome.completed > 0).all()


@dataclass(frozen=True)
class BestFit(Policy):
    """Each job on the fullest device that holds it, or its gang on the fullest host, the first of equals."""

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        room, start = state.room.copy(), dict[int, Grant]()
        for number in state.waiting:
            job = state.jobs[number]
            fullest = [
                (float(room.free[host, device]) if job.share < 1 else 1.0, float(room.free[host].sum()), host, device)
                for host, device in np.argwhere(room.free >= job.share - 1e-9).tolist()
                if job.share < 1 or room.whole[host] >= job.workers
            ]
            if fullest:
                *_, host, device = min(fullest)
                devices = np.flatnonzero(room.free[host] > 1 - 1e-9)[: job.workers].tolist()
                grant = Grant(tuple(Slot(host, d, job.share) for d in ([device] if job.share < 1 else devices)))
                room.take(job, grant)
                start[number] = grant
        return Decision.changing(state.running, start), None


@pytest.mark.technique("liquid", check=1)
@pytest.mark.parametrize("seed", range(4))
def test_one_rack_and_jobs_of_one_host_are_best_fit(seed: int) -> None:
    draws = np.random.default_rng(seed)
    hosts = tuple(Host(f"h{h}", 4, rack="only") for h in range(8))
    jobs = []
    for i in range(60):
        gpus, steps = float(draws.choice([0.2, 0.5, 0.7, 1, 2])), float(draws.integers(10, 60))
        jobs.append(Job(f"job{i}", float(draws.uniform(0, 150)), gpus, Sending(steps, 1.0, 1e9, share=min(gpus, 1))))
    cluster = Cluster(hosts, tree_of_racks(hosts, 1e9))
    ours = replay(jobs, cluster, Liquid(), keep_log=True, contention=OnLinks())
    fit = replay(jobs, cluster, BestFit(), keep_log=True, contention=OnLinks())
    assert all(len(grant.by_host) == 1 for entry in ours.log for _, grant in entry.changes.start)
    assert [entry.changes for entry in ours.log] == [entry.changes for entry in fit.log]


@pytest.mark.long
@pytest.mark.technique("liquid", check=2)
@pytest.mark.parametrize("seed", range(6))
def test_fewer_bytes_leave_racks_and_jobs_are_done_sooner_than_at_random(seed: int) -> None:
    """Jobs are submitted at the ends of windows, so that both modes see them at the same times."""
    cluster, jobs = two_racks(), trace(seed, window=30.0)
    at_once, batch, random = (
        replay(jobs, cluster, policy, contention=OnLinks(), keep_log=True)
        for policy in (Liquid(), Liquid(window=30.0), AtRandom(seed))
    )
    for ours in (at_once, batch):
        assert across_racks(ours, cluster) <= 0.7 * across_racks(random, cluster)
        assert ours.mean_completion_time <= 0.9 * random.mean_completion_time
    assert batch.mean_completion_time <= 1.02 * at_once.mean_completion_time


def test_jobs_on_one_link_share_it_and_proceed_as_alone_below_its_capacity() -> None:
    hosts = tuple(Host(f"r{r}h{h}", 2, rack=str(r)) for r in range(2) for h in range(3))
    cluster = Cluster(hosts, tree_of_racks(hosts, 8e9, oversubscribed=3.0))  # a gigabyte a second out of each rack

    def pair(host: int, compute: float) -> tuple[Job, Grant]:
        return Job(f"at{host}", 0.0, 2, Sending(100.0, compute, 1e9)), Grant((Slot(host, 0), Slot(host + 3, 0)))

    def speeds(*pairs: tuple[Job, Grant]) -> list[float]:
        return [rate.speed for rate in OnLinks().rates([Running(job, grant, 0.0) for job, grant in pairs], cluster)]

    assert speeds(pair(0, 1.0)) == [pytest.approx(0.5)]  # a second each
    assert speeds(pair(0, 1.0), pair(1, 3.0)) == pytest.approx([0.5, 0.25])  # three quarters of the link
    assert speeds(pair(0, 1.0), pair(1, 1.0), pair(2, 3.0)) == pytest.approx([0.375, 0.375, 0.25])
    with pytest.raises(ClusterError, match="ring, star"):
        Sending(1.0, 1.0, 1.0, "tree")
    with pytest.raises(ClusterError, match="3 ranks"):
        Cluster(hosts, tree_of_racks(hosts[:3], 1e9))


def test_a_parameter_servers_host_carries_what_all_others_send() -> None:
    cluster = two_racks(hosts=2, gpus=1)
    grant = Grant(tuple(Slot(host, 0) for host in range(4)))
    assert isinstance(cluster.network, Graph)
    at = {tuple(ends): link for link, ends in enumerate(cluster.network.ends.tolist())}
    star = Sending(1.0, 1.0, 10.0, "star").loads(grant, cluster)
    assert [star[at[0, 5]], star[at[5, 0]], star[at[1, 5]], star[at[5, 4]], star[at[6, 4]]] == [30, 30, 10, 20, 20]
    ring = Sending(1.0, 1.0, 10.0, "ring").loads(grant, cluster)
    assert [ring[at[0, 5]], ring[at[5, 4]], ring[at[4, 6]]] == [15, 15, 15]


def test_jobs_are_held_to_the_end_of_their_window_and_then_placed_as_gpus_come_free() -> None:
    jobs = [Job("first", 1.0, 4, Fixed(5.5)), Job("second", 2.0, 4, Fixed(3.0)), Job("third", 11.0, 4, Fixed(1.0))]
    outcome = replay(jobs, Cluster.uniform(1, 4), Liquid(window=10.0))
    assert outcome.first_start.tolist() == [10.0, 15.5, 20.0]


def true_needs(features: Features) -> Needs:
    weight = {"cnn": 1.0, "rnn": 0.6}[features.model]
    return Needs(
        0.02 * weight * features.batch**0.6,
        30 * features.parameters + 4e7 * weight * features.batch,
        500 * features.workers**0.1,
        4 * features.parameters * weight / features.batch**0.5,
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_needs_are_learned_from_past_jobs_and_let_more_jobs_share(seed: int) -> None:
    draws = np.random.default_rng(seed)

    def drawn() -> Features:
        return Features(
            str(draws.choice(["cnn", "rnn"])), float(10 ** draws.uniform(6, 8)), float(2 ** draws.integers(3, 8)),
            int(draws.integers(1, 9)), int(draws.integers(0, 3)),
        )  # fmt: skip

    past = []
    for _ in range(200):
        features = drawn()
        noise = np.exp(draws.normal(0, 0.05, 4))
        past.append((features, Needs(*(np.array(true_needs(features)) * noise).tolist())))
    model = NeedsModel.fit(past)
    asked = [drawn() for _ in range(100)]
    ratio = np.array([np.array(model.needs(f)) / np.array(true_needs(f)) for f in asked])[:, [0, 2, 3]]
    assert np.quantile(ratio, 0.05) > 0.9 and np.median(ratio) < 1.2  # not far off, and mostly above
    few = [f._replace(model="cnn", batch=16.0, workers=1) for f in asked[:12]]
    jobs = [Job(f"job{i}", 0.0, 1, Sending(100.0, 0.1, 1e6, share=true_needs(f).gpu_share)) for i, f in enumerate(few)]
    lean = [asking_for(job, model.needs(f)) for job, f in zip(jobs, few, strict=True)]
    cluster = Cluster((Host("one", 2, gpu_memory_bytes=80e9),))
    before, after = (replay(some, cluster, Liquid()).mean_completion_time for some in (jobs, lean))
    assert after < 0.5 * before
    with pytest.raises(ClusterError, match="no job has run"):
        NeedsModel.fit([])


def test_a_family_that_was_not_there_before_is_taken_for_the_mean() -> None:
    past = [(Features(m, p, b), Needs(g, 1.0, 1.0, 1.0)) for m, g in (("a", 0.1), ("b", 0.4)) for p, b in
            ((1e6, 8), (1e7, 8), (1e6, 64), (1e7, 32))]  # fmt: skip
    assert NeedsModel.fit(past).needs(Features("c", 1e6, 16)).gpu_share == pytest.approx(0.2)


def test_shorter_ways_come_before_fewer_free_gpus() -> None:
    hosts = tuple(
        Host(f"h{i}", gpus, rack=rack) for i, (gpus, rack) in enumerate(zip((2, 1, 1, 3, 2), "aaabb", strict=True))
    )
    job = Job("job", 0.0, 4, Sending(1.0, 1.0, 1e6))
    outcome = replay([job], Cluster(hosts, tree_of_racks(hosts, 1e9)), Liquid(), keep_log=True)
    assert outcome.log[0].changes.start[0][1].by_host == ((3, 3), (4, 1))


def test_what_each_job_needs_of_a_hosts_cores_is_kept() -> None:
    jobs = [replace(Job(f"job{i}", 0.0, 1, Fixed(10.0)), cpu_milli=5000) for i in range(3)]
    outcome = replay(jobs, two_racks(hosts=1), Liquid(), keep_log=True)
    assert sorted(outcome.first_start.tolist()) == [0.0, 0.0, 10.0]

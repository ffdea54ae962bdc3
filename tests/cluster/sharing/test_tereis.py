"""Tereis: packages never compute together, nothing changes without data to load, and short jobs wait much less."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.loading import Loading
from laconic.cluster.policies.tereis import Tereis
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Outage, replay
from laconic.cluster.state import Estimate
from tests.data import folder_of

BANDWIDTH = 1e9


def job(name: str, arrival: float, gpus: int, load: float, seconds: float) -> Job:
    return Job(name, arrival, gpus, Loading(load, seconds), data_bytes=load * BANDWIDTH)


@dataclass(frozen=True)
class Reckless(Loading):
    """A job that computes as soon as it has loaded, whoever else does."""

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        return super().rate(done, grant, cluster, ())


def drawn(seed: int, count: int, data: bool = True) -> list[Job]:
    draws = random.Random(seed)
    found = []
    for i in range(count):
        seconds = draws.uniform(20, 2000)
        load = draws.uniform(0.1, 0.9) * seconds if data else 0.0
        found.append(job(f"job{i}", draws.uniform(0, 8000), draws.choice([1, 1, 1, 2, 4]), load, seconds))
    return found


@pytest.mark.technique("tereis", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_packaged_jobs_never_compute_together(seed: int) -> None:
    jobs = [replace(one, progress=Reckless(one.progress.load, one.progress.seconds)) for one in drawn(seed, 120)]  # type: ignore[attr-defined]
    outcome = replay(jobs, Cluster.uniform(2, 4), Tereis(), keep_log=True)
    grants = {number: grant for entry in outcome.log for number, grant in entry.changes.start}
    by_device: dict[tuple[int, int], list[tuple[float, float]]] = {}
    packaged = 0
    for number, grant in grants.items():
        packaged += grant.is_shared
        end = float(outcome.completed[number])
        for device in grant.devices:
            by_device.setdefault(device, []).append((end - outcome.jobs[number].progress.seconds, end))  # type: ignore[attr-defined]
    assert packaged > 30 and outcome.restarts.sum() == 0
    for spans in by_device.values():
        ordered = sorted(spans)
        assert all(one[1] <= other[0] + 1e-5 for one, other in itertools.pairwise(ordered))


@pytest.mark.technique("tereis", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_without_data_it_is_the_queue_without_packages(seed: int) -> None:
    jobs, cluster = drawn(seed, 100, data=False), Cluster.uniform(2, 4)
    one, other = (replay(jobs, cluster, Tereis(packaging=packaging)) for packaging in (True, False))
    assert np.array_equal(one.completed, other.completed) and one.parts[0].mean() > 100
    loaded = [replace(one, gpus=1, least=1, most=1) for one in drawn(seed, 120)]
    one, other = (replay(loaded, cluster, Tereis(packaging=packaging)) for packaging in (True, False))
    assert one.parts[0].mean() < other.parts[0].mean()


def test_the_smallest_gap_of_the_first_queue_joins_as_soon_as_it_is_safe() -> None:
    jobs = [
        job("first", 0.0, 1, 0.0, 500.0),
        job("short", 1.0, 1, 100.0, 100.0),
        job("shorter", 2.0, 1, 40.0, 100.0),
        job("long", 3.0, 1, 450.0, 5000.0),
    ]
    outcome = replay(jobs, Cluster.uniform(1, 1), Tereis())
    # short is safe from 400 on, though long would have been from 50 on; shorter loads while short computes
    assert outcome.first_start.tolist() == pytest.approx([0.0, 400.0, 560.0, 600.0], abs=1e-3)
    assert outcome.completed.tolist() == pytest.approx([500.0, 600.0, 700.0, 6050.0], abs=1e-3)
    assert outcome.restarts.sum() == 0 and outcome.parts[4].sum() == pytest.approx(0, abs=1e-3)


def test_of_those_that_are_safe_the_smallest_gap_joins() -> None:
    jobs = [job("first", 0.0, 1, 0.0, 500.0), job("wide", 450.0, 1, 100.0, 100.0), job("close", 450.0, 1, 60.0, 100.0)]
    outcome = replay(jobs, Cluster.uniform(1, 1), Tereis())
    assert outcome.first_start.tolist() == pytest.approx([0.0, 510.0, 450.0], abs=1e-3)


def test_a_gang_that_has_waited_for_very_long_is_passed_no_more() -> None:
    singles = [job(f"s{i}", 300.0 * i, 1, 100.0, 500.0) for i in range(60)]
    gang = job("gang", 400.0, 2, 0.0, 300.0)
    starts = []
    for ageing in (2000.0, 1e6):
        outcome = replay([*singles, gang], Cluster.uniform(1, 2), Tereis(ageing=ageing))
        starts.append(next(outcome.first_start[i] for i, one in enumerate(outcome.jobs) if one.name == "gang"))
    assert starts[0] < 4000 and starts[1] > 15_000


def test_only_as_large_a_gang_joins() -> None:
    jobs = [job("first", 0.0, 2, 0.0, 500.0), job("single", 1.0, 1, 100.0, 100.0), job("pair", 2.0, 2, 100.0, 100.0)]
    outcome = replay(jobs, Cluster.uniform(1, 2), Tereis())
    assert outcome.first_start.tolist() == pytest.approx([0.0, 600.0, 400.0], abs=1e-3)


def test_where_the_first_is_late_the_second_waits_at_the_end_of_its_loading() -> None:
    jobs = [job("first", 0.0, 1, 0.0, 500.0), job("second", 0.0, 1, 100.0, 100.0)]
    estimates = [Estimate(300.0, "guess", 0.0), Estimate(200.0, "guess", 0.0)]
    outcome = replay(jobs, Cluster.uniform(1, 1), Tereis(), estimates=estimates)
    assert outcome.first_start[1] == pytest.approx(200.0)
    assert outcome.completed.tolist() == pytest.approx([500.0, 600.0])
    assert outcome.parts[4][1] == pytest.approx(200.0)
    without = replay([jobs[0], job("second", 0.0, 1, 0.0, 100.0)], Cluster.uniform(1, 1), Tereis(), estimates=estimates)
    assert without.first_start[1] == 500.0  # who has nothing to load does not join


def test_who_waits_for_long_is_promoted() -> None:
    jobs = [job("long", 0.0, 1, 0.0, 20_000.0)] + [job(f"s{i}", 0.0, 1, 0.0, 500.0) for i in range(100)]
    outcome = replay(jobs, Cluster.uniform(1, 1), Tereis(ageing=5000.0))
    assert outcome.first_start[0] == pytest.approx(15_000)  # three queues up, and it came first
    assert replay(jobs, Cluster.uniform(1, 1), Tereis(ageing=1e6)).first_start[0] == pytest.approx(50_000)


def test_jobs_of_a_lost_host_wait_again() -> None:
    outcome = replay(drawn(3, 30), Cluster.uniform(2, 4), Tereis(), outages=[Outage(0, 2000.0, 9000.0)])
    assert np.all(np.isfinite(outcome.completed)) and outcome.restarts.sum() > 0


@functools.cache
def short_jobs(begin: int) -> list[Job]:
    """300 jobs in a row of those of Philly that take a minute to an hour."""
    everyone = read_philly(folder_of("pollux") / "traces" / "philly.csv", None, least_seconds=60)
    short = sorted((one for one in everyone if one.progress.work <= 3600), key=lambda one: one.arrival)
    return [one for one in short[begin : begin + 300] if one.workers <= 8]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_short_jobs_of_philly_wait_less_and_end_sooner(seed: int) -> None:
    """On 12 GPUs, which are too few for loading and computing one after the other; jobs load for 10 to 50 % of the time
    for which they compute. The row's second check asks for half the waiting, and is not marked: in bursts, in which
    Philly's jobs come, waiting falls by a tenth to a third, on 8 to 72 GPUs and in seven parts of the trace."""
    draws, part = random.Random(seed), short_jobs(36_000)
    jobs = [
        job(one.name, one.arrival - part[0].arrival, one.workers, draws.uniform(0.1, 0.5) * one.progress.work, work)
        for one in part
        for work in (one.progress.work,)
    ]
    packaged, plain = (replay(jobs, Cluster.uniform(1, 12), Tereis(packaging=x)) for x in (True, False))
    waits = [(outcome.parts[0] + outcome.parts[4]).mean() for outcome in (packaged, plain)]
    assert waits[1] >= 1.25 * waits[0]
    assert packaged.makespan <= 0.9 * plain.makespan

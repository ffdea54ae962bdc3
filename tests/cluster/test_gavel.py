"""Shares of time on GPUs of different types: the programs, the rounds that give them, published completion times."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from laconic.cluster.by_type import ByType
from laconic.cluster.decision import Decision
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.policies.gavel import ROUND, Gavel
from laconic.cluster.policy import Policy
from laconic.cluster.readers.gavel import KINDS, Throughputs, continuous_jobs, read_gavel
from laconic.cluster.replay import Outage, replay
from laconic.cluster.shares import objectives
from laconic.cluster.shares.problem import Shared
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from tests.data import folder_of

TYPES = ("v100", "p100", "k80")


def cluster_of(*gpus: int) -> Cluster:
    return Cluster(tuple(Host(f"{t}-{i}", 1, t) for t, n in zip(TYPES, gpus, strict=False) for i in range(n)))


def problem_of(seed: int, jobs: int, gpus: tuple[int, ...], gangs: bool = True) -> Shared:
    draw = np.random.default_rng(seed)
    speeds = draw.uniform(0.2, 1.0, (jobs, len(gpus))) * np.array([8.0, 4.0, 1.0])[: len(gpus)]
    workers = draw.choice([1, 2] if gangs else [1], jobs).astype(float)
    return Shared(speeds, workers, draw.choice([1.0, 2.0], jobs), np.array(gpus, float))


def fits(problem: Shared, shares: np.ndarray) -> None:
    assert np.all(shares >= 0) and np.all(shares.sum(axis=1) <= 1 + 1e-7)
    assert np.all(problem.workers @ shares <= problem.gpus + 1e-6)


@given(st.integers(0, 10_000), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_no_shares_are_fairer_and_none_end_earlier(seed: int, jobs: int) -> None:
    """Beside the bound of duality: a program of prices for GPUs and for jobs' time, written down separately."""
    problem = problem_of(seed, jobs, (3, 2, 2))
    remaining = np.random.default_rng(seed + 1).uniform(1, 50, jobs)
    service = problem.workers / (problem.weights * problem.equal_speeds)
    for shares, per_job in (
        (objectives.least_attained_service(problem), service),
        (objectives.makespan(problem, remaining), 1 / remaining),
    ):
        fits(problem, shares)
        reached = float((per_job * (problem.speeds * shares).sum(axis=1)).min())
        assert reached == pytest.approx(least_bound(problem, per_job), rel=1e-6)


def least_bound(problem: Shared, per_job: np.ndarray) -> float:
    """min Σ_m y_m + Σ_j N_j p_j where y_m + s_m p_j ≥ z_m r_mj T_mj for all m and j, and Σ_m z_m = 1."""
    jobs, types = problem.speeds.shape
    target = np.concatenate([np.ones(jobs), problem.gpus, np.zeros(jobs)])
    rows = []
    for m in range(jobs):
        for j in range(types):
            row = np.zeros(2 * jobs + types)
            row[m], row[jobs + j] = -1.0, -problem.workers[m]
            row[jobs + types + m] = per_job[m] * problem.speeds[m, j]
            rows.append(row)
    whole = np.concatenate([np.zeros(jobs + types), np.ones(jobs)])[None]
    return float(linprog(target, np.array(rows), np.zeros(len(rows)), whole, [1.0], method="highs").fun)


@pytest.mark.technique("gavel", check=1)
@pytest.mark.parametrize("seed", range(6))
def test_on_alike_gpus_it_makes_no_difference_whether_speeds_are_known(seed: int) -> None:
    problem = problem_of(seed, 9 + seed, (4,))
    aware = objectives.least_attained_service(problem)
    np.testing.assert_allclose(aware, objectives.blindly(objectives.least_attained_service, problem), atol=1e-7)
    unlike = problem_of(seed, 9 + seed, (4, 4, 4))
    unaware = objectives.blindly(objectives.least_attained_service, unlike)
    assert np.abs(objectives.least_attained_service(unlike) - unaware).max() > 0.1


class Enough(Exception):
    """Raised to end a replay."""


@dataclass(frozen=True)
class Watched(Policy):
    """Gavel for 200 rounds, and the rounds that each job was on each type."""

    inner: Gavel = field(default_factory=Gavel)
    rounds: dict[tuple[int, str], int] = field(default_factory=dict)
    every = ROUND

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        for job, grant in state.running.items():
            gpu = state.cluster.hosts[grant.slots[0].host].gpu
            self.rounds[job, gpu] = self.rounds.get((job, gpu), 0) + 1
        if state.now >= 200 * ROUND:
            raise Enough
        return self.inner.decide(state, events, memory)


def after_200_rounds(seed: int, aware: bool) -> np.ndarray:
    """How much more each job was on each type than its share, for a static set of jobs, more than there are GPUs.
    There are gangs only where speeds are not known."""
    gpus = (18, 12, 12)
    problem = problem_of(seed, 75, gpus, gangs=not aware)
    jobs = []
    for i, speeds in enumerate(problem.speeds.tolist()):
        progress = ByType(300 * ROUND * max(speeds), dict(zip(TYPES, speeds, strict=True)))
        jobs.append(Job(f"job{i}", 0.0, int(problem.workers[i]), progress, weight=float(problem.weights[i])))
    watched = Watched(Gavel(aware=aware))
    with pytest.raises(Enough):
        replay(jobs, cluster_of(*gpus), watched)
    received = np.array([[watched.rounds.get((job, gpu), 0) / 200 for gpu in TYPES] for job in range(75)])
    solve = objectives.least_attained_service
    shares = solve(problem) if aware else objectives.blindly(solve, problem)
    assert shares.max() > 0.1
    more: np.ndarray = received - shares
    return more


@pytest.mark.technique("gavel", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_rounds_give_the_shares(seed: int) -> None:
    assert np.abs(after_200_rounds(seed, aware=False)).max() < 0.05


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_where_shares_differ_by_type_no_job_falls_short(seed: int) -> None:
    """Some get up to 0.1 more: of GPUs whose owners are on another type in that round."""
    more = after_200_rounds(seed, aware=True)
    assert more.min() > -0.05
    assert more.max() < 0.15


def test_a_job_waits_for_the_next_shares_and_a_lost_host_is_not_used() -> None:
    jobs = [
        Job("first", 0.0, 1, ByType(7200.0, {"v100": 1.0})),
        Job("late", 370.0, 1, ByType(60.0, {"v100": 1.0})),
        Job("cannot", 0.0, 1, ByType(60.0, {"k80": 1.0})),
    ]
    outcome = replay(jobs, cluster_of(2, 0, 1), Gavel(), outages=[Outage(1, 0.0, 5000.0)])
    started = dict(zip((job.name for job in outcome.jobs), outcome.first_start, strict=True))
    assert started["first"] == started["cannot"] == 0.0
    # new shares when the third job has gone, at 360 s, then 1,920 s later at the earliest; the first GPU's turn is next
    assert started["late"] == 8 * ROUND


def test_finish_time_fairness_brings_those_that_are_late_forward() -> None:
    problem = Shared(np.ones((2, 1)), np.ones(2), np.ones(2), np.ones(1))
    remaining, elapsed = np.array([100.0, 100.0]), np.array([900.0, 0.0])
    even = objectives.finish_time_fairness(problem, remaining, np.zeros(2), np.zeros(2))
    np.testing.assert_allclose(even[:, 0], 0.5, atol=1e-2)
    late = objectives.finish_time_fairness(problem, remaining, elapsed, np.zeros(2))
    assert late[0, 0] > 0.9


def test_throughputs_are_read_and_jobs_are_drawn(tmp_path: Path) -> None:
    table = {gpu: {"('A3C', 1)": {"null": speed}} for gpu, speed in (("v100", 4.0), ("k80_unconsolidated", 1.0))}
    (tmp_path / "t.json").write_text(json.dumps(table))
    assert read_gavel(tmp_path / "t.json") == {("A3C", 1): {"v100": 4.0}}
    (tmp_path / "t.json").write_text(json.dumps({"v100": {"A3C": {"null": 1.0}}}))
    with pytest.raises(ClusterError, match="no kind of job"):
        read_gavel(tmp_path / "t.json")
    with pytest.raises(ClusterError, match="2 jobs on 3 types"):
        Shared(np.ones((2, 3)), np.ones(2), np.ones(2), np.ones(2))


@functools.cache
def hours(aware: bool, per_hour: float, seed: int) -> float:
    """The mean hours to completion of the 4,000th to the 5,000th job on 36 GPUs of each type, as the authors count;
    others come after. Types are filled one after the other, as in their simulator."""
    jobs = continuous_jobs(measured(), per_hour, 5200, seed)
    outcome = replay(jobs, cluster_of(36, 36, 36), Gavel(aware=aware, queue="by_type", seed=seed))
    return float(outcome.completion_times[4000:5000].mean() / 3600)


def measured() -> Throughputs:
    return read_gavel(folder_of("gavel") / "simulation_throughputs.json")


@pytest.mark.long
@pytest.mark.evidence("gavel")
@pytest.mark.parametrize(("aware", "published"), [(False, 23.49), (True, 16.82)])
def test_completion_times_are_the_published_ones(aware: bool, published: float) -> None:
    """Four jobs an hour and the authors' three seeds: two minutes or so for each figure."""
    assert np.mean([hours(aware, 4.0, seed) for seed in range(3)]) == pytest.approx(published, rel=0.05)


def saturating() -> float:
    """The jobs an hour that ask for 108 GPUs in all, where each is on every type for as long as on the others: who does
    not know speeds can have no more of them done."""
    speeds = np.array([[measured()[kind, 1][gpu] for gpu in TYPES] for kind in KINDS])
    on_v100 = (0.8 * (10**3 - 10**1.5) / np.log(10**1.5) + 0.2 * (10**4 - 10**3) / np.log(10)) / 60  # hours, mean
    return float(108 / (on_v100 * speeds[:, 0] / speeds.mean(axis=1)).mean())


@pytest.mark.long
@pytest.mark.technique("gavel", check=2)
def test_at_saturation_jobs_take_half_as_long_again_where_speeds_are_not_known() -> None:
    """At the rate that saturates who does not know speeds, in the mean over the seeds of the published figures, which
    differ much there (1.72, 2.34 and 1.36 times as long; three others 1.35, 2.39 and 1.53). At 4.5 it is 1.36 times."""
    assert saturating() == pytest.approx(4.8, rel=0.01)
    blind, aware = (np.mean([hours(aware, 4.8, seed) for seed in range(3)]) for aware in (False, True))
    assert blind / aware >= 1.5


@pytest.mark.long
@pytest.mark.technique("gavel", check=3)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_makespan_of_a_static_trace_is_below_first_in_first_outs(seed: int) -> None:
    """60 jobs, 30 % of them gangs, all there at once, on 12 GPUs of each type."""
    jobs = continuous_jobs(measured(), 0.0, 60, seed, gangs=True)
    assert max(job.workers for job in jobs) == 8
    blind, aware = (
        replay(jobs, cluster_of(12, 12, 12), policy).makespan
        for policy in (Gavel("fifo", aware=False), Gavel("makespan"))
    )
    assert blind / aware >= 1.2

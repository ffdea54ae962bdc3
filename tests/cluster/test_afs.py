"""AFS: the short job at a tie, the efficient one otherwise, no idle GPU while somebody gains, and its worth."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.elastic import Elastic, curve_of
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.policies.afs import Afs, apathetic_shares
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policy import Policy
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.readers.pollux_speeds import read_speeds
from laconic.cluster.replay import Costs, replay
from tests.cluster.baselines import TwoQueues
from tests.data import folder_of

gains = st.lists(st.integers(1, 40), min_size=1, max_size=9).map(lambda x: sorted(x, reverse=True))


def concave(steps: list[int]) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(np.array(steps, dtype=float))])


@pytest.mark.technique("afs", check=1)
@given(gains, st.integers(1, 500), st.integers(1, 500), st.integers(1, 24))
@settings(max_examples=200, deadline=None)
def test_of_two_jobs_with_equal_curves_the_shorter_wins_every_tie(
    steps: list[int], one: int, more: int, gpus: int
) -> None:
    curve = concave(steps)
    shares = apathetic_shares({0: one + more, 1: one}, {0: curve, 1: curve}, gpus)
    long, short = shares.get(0, 0), shares[1]
    assert short >= long
    usable = min(gpus, 2 * len(steps))
    assert short + long == usable
    if usable % 2:
        assert short > long
    if len(set(steps)) == 1 and gpus > 1:  # as efficient with many: all but one
        assert short == min(gpus - 1, len(steps))


@pytest.mark.technique("afs", check=1)
def test_a_far_more_efficient_long_job_wins() -> None:
    flat, steep = concave([10, 1, 1, 1, 1, 1]), concave([10, 10, 10, 10, 10, 10])
    assert apathetic_shares({0: 100, 1: 1000}, {0: flat, 1: steep}, 6) == {0: 1, 1: 5}
    assert apathetic_shares({0: 100, 1: 1000}, {0: steep, 1: flat}, 6) == {0: 5, 1: 1}
    # by hand: b's gain over its speed after it, 6/16 = 0.375, against a's over its speed before it, 4/10 and 3.5/10
    after = concave([10, 6])
    assert apathetic_shares({0: 10, 1: 1000}, {0: np.array([0, 10, 14]), 1: after}, 3) == {0: 2, 1: 1}
    assert apathetic_shares({0: 10, 1: 1000}, {0: np.array([0, 10, 13.5]), 1: after}, 3) == {0: 1, 1: 2}


@pytest.mark.technique("afs", check=1)
@given(st.lists(st.tuples(gains, st.integers(1, 300), st.integers(0, 3)), min_size=1, max_size=7), st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_shares_fit_and_nobody_gains_from_an_idle_gpu(facts: list[tuple[list[int], int, int]], gpus: int) -> None:
    curves = {}
    for i, (steps, _, below) in enumerate(facts):
        curves[i] = concave(steps)
        curves[i][1 : min(below, len(steps) - 1) + 1] = 0.0  # a gang that needs more than one
    shares = apathetic_shares({i: length for i, (_, length, _) in enumerate(facts)}, curves, gpus)
    idle = gpus - sum(shares.values())
    assert idle >= 0
    for job, curve in curves.items():
        least = int(np.argmax(curve > 0))
        share = shares.get(job, 0)
        assert share == 0 or curve[share] > 0
        if idle and share:
            assert share + 1 == len(curve) or curve[share + 1] <= curve[share]
        assert share or idle < least


@pytest.mark.technique("afs", check=1)
@pytest.mark.parametrize("known", [True, False])
def test_elastic_jobs_take_what_ending_ones_leave(known: bool) -> None:
    speeds = (1.0, 2.0, 3.0, 4.0)
    jobs = [Job("short", 0.0, 1, Elastic(12.0, speeds), most=4), Job("long", 0.0, 1, Elastic(40.0, speeds), most=4)]
    outcome = replay(jobs, Cluster.uniform(1, 4), Afs(known))
    assert outcome.completed.tolist() == [4.0, 13.0]  # 3 and 1 of the GPUs, then all 4 for the 36 that are left


def test_a_curve_is_read_from_any_progress_and_stops_at_the_cluster() -> None:
    job = Job("a", 0.0, 2, Elastic(1.0, (1.0, 1.5, 1.75)), least=2, most=9)
    assert curve_of(job, Cluster.uniform(2, 2)).tolist() == [0.0, 0.0, 1.5, 1.75, 1.75]


@functools.cache
def mean_completion_time(policy: Policy, elastic: bool, seed: int) -> float:
    """One tenant of Philly on 20 GPUs, which its jobs ask for from the first to the last arrival (load 0.98); each job
    has the curve of one of Pollux' six models, scaled so that its own number of GPUs takes as long as it took."""
    traces = folder_of("pollux") / "traces"
    speeds, draws, jobs = read_speeds(traces), random.Random(seed), list[Job]()
    for job in read_philly(traces / "philly.csv", "103959", least_seconds=60):
        curve = speeds[draws.choice(sorted(speeds))]
        progress = Elastic(job.progress.work, tuple(speed / curve[job.workers - 1] for speed in curve))
        least, most = (1, 16) if elastic else (job.workers, job.workers)
        jobs.append(replace(job, progress=progress, least=least, most=most))
    return replay(jobs, Cluster.uniform(5, 4), policy, Costs(restart=30.0)).mean_completion_time


@pytest.mark.long
@pytest.mark.technique("afs", check=2)
@pytest.mark.parametrize("seed", [0, 1])
def test_elastic_shares_are_faster_than_fixed_counts_on_philly(seed: int) -> None:
    elastic = mean_completion_time(Afs(), True, seed)
    assert mean_completion_time(Srtf(), False, 0) / elastic >= 1.3  # whose counts are fixed: the same for every seed
    assert mean_completion_time(TwoQueues(16 * 3600.0), False, 0) / elastic >= 1.5

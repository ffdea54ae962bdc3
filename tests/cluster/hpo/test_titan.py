"""Titan: merges that pay, their memory, and jobs that end sooner by them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.hpo.finetuning import Backbone, FineTuning, ends, fewest_wasted, merged_bytes
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policies.titan import Titan
from laconic.cluster.replay import Costs, replay
from laconic.errors import ClusterError

BACKBONES = (
    Backbone("encoder", 0.05, 0.06, 0.004, model_bytes=1.8e9, sample_bytes=0.1e9),
    Backbone("decoder", 0.12, 0.15, 0.012, model_bytes=6e9, sample_bytes=0.3e9),
)
GPU_BYTES = 16e9


def cluster(hosts: int = 2, gpus: int = 4) -> Cluster:
    return Cluster(tuple(Host(f"host{i}", gpus, gpu_memory_bytes=GPU_BYTES) for i in range(hosts)))


def jobs_of(seed: int, count: int, backbones: int, apart: float = 60.0) -> list[Job]:
    draws = np.random.default_rng(seed)
    found = []
    for i in range(count):
        base = BACKBONES[i % 2]
        backbone = Backbone(f"{base.name}{i % backbones}", *list(base.__dict__.values())[1:])
        batch = int(2 ** draws.integers(3, 6))
        gpus = int(2 ** draws.integers(0, 3))
        task = FineTuning(backbone, int(10 ** draws.uniform(4, 5)), batch, gpus, head_bytes=5e7)
        found.append(Job(f"job{i}", float(draws.uniform(0, apart * count)), gpus, task, least=1, most=8))
    return found


@pytest.mark.technique("titan", check=1)
def test_merged_jobs_have_one_backbone_and_a_head_each() -> None:
    backbone = BACKBONES[0]
    one, two = FineTuning(backbone, 1000, 8, head_bytes=3e7), FineTuning(backbone, 500, 24, head_bytes=5e7)
    assert merged_bytes([one, two], 1) == 1.8e9 + 8e7 + 32 * 0.1e9
    assert merged_bytes([one, two], 2) == 1.8e9 + 8e7 + 16 * 0.1e9
    separate = merged_bytes([one], 1) + merged_bytes([two], 1)
    assert separate - merged_bytes([one, two], 1) == pytest.approx(backbone.model_bytes)


def test_merged_steps_are_shorter_than_both_and_longer_than_one() -> None:
    task = FineTuning(BACKBONES[0], 800, 8, 2)
    pair = [(task, task.work)] * 2
    first, second = ends(pair, 2)
    assert first == second and task.work < first < 2 * task.work
    short = ends([(task, task.work), (task, task.work / 2)], 2)
    assert short[1] < short[0] < first  # who is done leaves the rest to the other
    assert short[0] == pytest.approx(50 * BACKBONES[0].seconds(16, 2) + 50 * BACKBONES[0].seconds(8, 2))


@pytest.mark.technique("titan", check=1)
@pytest.mark.parametrize("seed", range(20))
def test_two_jobs_are_merged_just_where_they_end_earlier_on_average(seed: int) -> None:
    """On GPUs for one of the two at a time, and for both."""
    draws = np.random.default_rng(seed)
    for hosts in (1, 2):
        tasks = [
            FineTuning(BACKBONES[0], int(10 ** draws.uniform(3, 5)), int(2 ** draws.integers(2, 6)), 2)
            for _ in range(2)
        ]
        both = [Job(f"job{i}", 0.0, 2, task, least=1, most=2) for i, task in enumerate(tasks)]
        outcome = replay(both, cluster(hosts, 2), Titan(), keep_log=True)
        grants = dict(outcome.log[0].changes.start)
        merged = len(grants) == 2 and grants[0] == grants[1]
        works = sorted(task.work for task in tasks)
        apart = 2 * works[0] + works[1] if hosts == 1 else sum(works)
        together = sum(ends([(task, task.work) for task in tasks], 2))
        assert merged == (together < apart)
        assert outcome.completed.sum() == pytest.approx(min(together, apart))


@pytest.mark.technique("titan", check=2)
@pytest.mark.parametrize("seed", range(6))
def test_thirty_jobs_of_two_backbones_end_sooner(seed: int) -> None:
    jobs, costs = jobs_of(seed, 30, 2), Costs(start=20.0, restart=5.0)
    merged, apart = (replay(jobs, cluster(), policy, costs) for policy in (Titan(), Srtf()))
    assert apart.mean_completion_time / merged.mean_completion_time >= 1.2


@pytest.mark.technique("titan", check=2)
@pytest.mark.parametrize("seed", range(6))
def test_backbones_that_all_differ_are_run_as_by_shortest_remaining_time(seed: int) -> None:
    jobs, costs = jobs_of(seed, 30, 30), Costs(start=20.0, restart=5.0)
    merged, apart = (replay(jobs, cluster(), policy, costs) for policy in (Titan(), Srtf()))
    np.testing.assert_array_equal(merged.completed, apart.completed)


def test_what_does_not_fit_is_not_merged_and_others_are_left_alone() -> None:
    large = Backbone("large", 1.0, 0.0, 0.001, model_bytes=9e9, sample_bytes=0.5e9)
    jobs = [Job(f"job{i}", 0.0, 1, FineTuning(large, 1000, 8), least=1, most=1) for i in range(3)]
    small = Cluster((Host("host", 1, gpu_memory_bytes=GPU_BYTES),))
    log = replay([*jobs, Job("other", 0.0, 1, Fixed(5.0))], small, Titan(), keep_log=True).log
    assert all(len(logged.changes.start) <= 1 for logged in log)
    for pair in itertools.pairwise(log):
        assert pair[0].time < pair[1].time
    assert [fewest_wasted(BACKBONES[1], batch, 8, GPU_BYTES) for batch in (16, 64, 256)] == [
        1,
        4,
        8,
    ]  # 4: 0.71 of what each of 2 does
    with pytest.raises(ClusterError, match="smaller batch"):
        fewest_wasted(large, 64, 4, GPU_BYTES)

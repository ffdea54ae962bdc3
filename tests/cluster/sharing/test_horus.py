"""Horus: utilisation is a proxy of interference, is predicted, and guides who shares a GPU with whom."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.horus import Horus
from laconic.cluster.readers.lucid import Colocated, read_lucid
from laconic.cluster.replay import Outage, replay
from laconic.cluster.sharing.pairs import Paired
from laconic.cluster.sharing.utilisation import Graph, graph_of, of_kinds, train
from laconic.errors import ClusterError
from tests.data import folder_of

GB = 1e9


@functools.cache
def measured() -> list[Colocated]:
    return read_lucid(folder_of("lucid") / "colocate_info.csv")


@pytest.mark.technique("horus", check=1)
def test_a_pairs_utilisation_tells_its_speed() -> None:
    assert len(measured()) == 1388
    speeds = [(row.pair.first_speed + row.pair.second_speed) / 2 for row in measured()]
    assert spearmanr([row.utilisation for row in measured()], speeds).statistic < -0.5
    assert np.corrcoef([row.utilisation for row in measured()], speeds)[0, 1] == pytest.approx(-0.58, abs=0.005)


@pytest.mark.technique("horus", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_predicted_of_unseen_pairs_tells_their_speed_too(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(measured()))
    seen, unseen = ([measured()[i] for i in part] for part in (order[:694], order[694:]))
    busy = of_kinds([row.pair for row in seen], [row.utilisation for row in seen])
    summed = [busy[row.pair.first] + busy[row.pair.second] for row in unseen]
    speeds = [(row.pair.first_speed + row.pair.second_speed) / 2 for row in unseen]
    assert spearmanr(summed, speeds).statistic < -0.5
    errors = np.minimum(summed, 1) - [row.utilisation for row in unseen]
    spread = np.std([row.utilisation for row in unseen])
    assert np.abs(errors).mean() < 0.5 * spread


@functools.cache
def fitted() -> dict[str, float]:
    return of_kinds([row.pair for row in measured()], [row.utilisation for row in measured()])


def mix(seed: int, count: int) -> list[Job]:
    """Jobs of the kinds of which every pair was measured, which take ten minutes to three hours alone."""
    draws = random.Random(seed)
    busy = fitted()
    beside: dict[str, dict[str, float]] = {kind: {} for kind in busy}
    for first, second, one, other in (row.pair for row in measured()):
        beside[first][second], beside[second][first] = one, other
    kinds = sorted(kind for kind in busy if len(beside[kind]) > 10)
    assert len(kinds) == 52
    jobs = []
    for i in range(count):
        kind = draws.choice(kinds)
        progress = Paired(draws.uniform(600, 10_800), {"": 1.0}, {"": beside[kind]})
        jobs.append(Job(f"job{i}", 0.0, 1, progress, kind=kind, utilisation=busy[kind]))
    return jobs


def blind(jobs: Sequence[Job], seed: int) -> list[Job]:
    """The same jobs with utilisations that say nothing: any two may share a GPU, and which do is drawn."""
    draws = random.Random(seed)
    return [replace(job, utilisation=draws.uniform(0, 0.5)) for job in jobs]


def mean_slowdown(outcome: Any) -> float:
    works = np.array([job.progress.work for job in outcome.jobs])
    return float((outcome.parts[1:].sum(axis=0) / works).mean())


@pytest.mark.technique("horus", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_packing_by_utilisation_is_faster_than_none_and_slows_less_than_chance(seed: int) -> None:
    jobs, cluster = mix(seed, 80), Cluster.uniform(2, 4)
    exclusive, guided = replay(jobs, cluster, Fifo()), replay(jobs, cluster, Horus())
    chance = [mean_slowdown(replay(blind(jobs, draw), cluster, Horus())) for draw in range(3)]
    assert guided.makespan <= 0.85 * exclusive.makespan
    assert guided.parts[0].mean() < 0.5 * exclusive.parts[0].mean()
    assert mean_slowdown(guided) < np.mean(chance)


def test_the_cost_prefers_empty_gpus_and_then_those_that_are_filled_best() -> None:
    def job(busy: float, memory: float = 4 * GB) -> Job:
        return Job("job", 0.0, 1, Fixed(1.0), utilisation=busy, gpu_memory_bytes=memory)

    horus = Horus(limit=1.5, most=3)
    costs = [horus.cost(job(0.5), [job(busy) for busy in there], 16 * GB) for there in ([], [0.1], [0.4], [0.5], [0.6])]
    assert costs == pytest.approx([0.325 + 0.5, 0.65 + 0.4 + 1, 0.65 + 0.1 + 1, 0.65 + 1, 0.65 + 0.16 + 1])
    assert horus.cost(job(0.5), [job(0.1, 13 * GB)], 16 * GB) is None  # memory
    assert Horus().cost(job(0.5), [job(0.6)], 16 * GB) is None  # beyond the limit
    assert Horus().cost(job(0.1), [job(0.1)] * 2, 16 * GB) is None  # too many


def test_a_window_finds_who_fits_and_a_gang_stays_on_one_host() -> None:
    def job(i: int, busy: float, gpus: int = 1, seconds: float = 100.0) -> Job:
        return Job(f"job{i}", float(i), gpus, Fixed(seconds), utilisation=busy)

    jobs = [job(0, 0.9), job(1, 0.8), job(2, 0.1)]
    one = Cluster.uniform(1, 1)
    assert replay(jobs, one, Horus()).first_start.tolist()[2] == 2.0
    assert replay(jobs, one, Horus(window=1)).first_start.tolist()[2] >= 100.0
    gang = [job(0, 0.3), job(1, 0.3), job(2, 0.3, gpus=2)]
    outcome = replay(gang, Cluster((Host("a", 2), Host("b", 3))), Horus(), keep_log=True)
    grants = {number: grant for entry in outcome.log for number, grant in entry.changes.start}
    assert len(grants[2].by_host) == 1 and not grants[2].is_shared
    gang = [job(0, 0.3, gpus=1), job(1, 0.3, gpus=2)]  # the cheapest two are of two hosts
    outcome = replay(gang, Cluster((Host("a", 2), Host("b", 2))), Horus(), keep_log=True)
    grants = {number: grant for entry in outcome.log for number, grant in entry.changes.start}
    assert grants[1].by_host == ((1, 2),)
    spread = replay([job(i, 0.9, gpus=3 if i == 2 else 1) for i in range(3)], Cluster.uniform(2, 2), Horus())
    assert spread.first_start[2] == 100.0


def test_a_newcomer_that_does_harm_is_evicted_and_goes_elsewhere() -> None:
    slow = Paired(600.0, {"": 1.0}, {"": {"b": 0.2}})
    harmful = Paired(600.0, {"": 1.0}, {"": {"a": 0.9}})
    jobs = [
        Job("a", 0.0, 1, slow, kind="a", utilisation=0.2),
        Job("other", 0.0, 1, Fixed(300.0), kind="c", utilisation=1.0),
        Job("b", 100.0, 1, harmful, kind="b", utilisation=0.2),
    ]
    outcome = replay(jobs, Cluster.uniform(1, 2), Horus())
    assert outcome.first_start[2] == 100.0 and outcome.restarts.tolist() == [0, 0, 1]
    assert outcome.completed[0] == pytest.approx(600 + 48)  # a minute at a fifth
    assert outcome.completed[2] == pytest.approx(300 + 600 - 54)
    kept = replay(jobs, Cluster.uniform(1, 2), Horus(least_speed=0.1))
    assert kept.restarts.sum() == 0


def test_jobs_of_a_lost_host_start_elsewhere() -> None:
    jobs = [Job(f"job{i}", 0.0, 1, Fixed(200.0), utilisation=0.4) for i in range(6)]
    outcome = replay(jobs, Cluster.uniform(2, 2), Horus(), outages=[Outage(0, 50.0, 9000.0)])
    assert np.all(np.isfinite(outcome.completed)) and outcome.makespan < 1500


def busy_of(graph: Graph) -> float:
    """A GPU on which launching an operator takes as long as some work of it: how long it computes, of all the time."""
    work = 3 * graph.flops / 5e12 + 3 * 8 * graph.activations / 5e11
    return work / (work + 3 * graph.depth * 8e-6)


def nets(seed: int, count: int) -> list[Graph]:
    """Graphs of nets of equal layers: every other one of matrices with norms, the others of convolutions."""
    draws = random.Random(seed)
    found = []
    for i in range(count):
        width, depth, batch = draws.choice([16, 64, 256, 512]), draws.randint(2, 9), draws.choice([8, 32, 128, 512])
        channels, pixels = width // 8, draws.choice([512, 1024])
        kinds, weights, entries = (
            (("LayerNorm", "Linear", "ReLU"), width * width, batch * width)
            if i % 2
            else (("Conv2d", "ReLU"), 9 * channels * channels, batch * channels * pixels)
        )
        flops = 2.0 * depth * weights * batch * (1 if i % 2 else pixels)
        operators = tuple((kind, depth) for kind in kinds)
        found.append(Graph(operators, flops, depth * weights, len(kinds) * depth * entries, batch))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_utilisation_is_predicted_from_the_graph(seed: int) -> None:
    past, new = nets(seed, 160), nets(seed + 100, 60)
    predictor = train(past, [busy_of(graph) for graph in past])
    predicted, truth = [predictor.predict(graph) for graph in new], [busy_of(graph) for graph in new]
    errors = np.abs(np.subtract(predicted, truth))
    assert errors.mean() < 0.3 * np.abs(np.array(truth) - np.mean(truth)).mean()
    assert spearmanr(predicted, truth).statistic > 0.9
    with pytest.raises(ClusterError, match="past jobs"):
        train(past, [])


def test_a_graph_has_the_counts_of_its_operators() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Sequential(nn.Linear(20, 5), nn.ReLU()))
    graph = graph_of(model, torch.zeros(7, 10))
    assert graph.operators == (("Linear", 2), ("ReLU", 2)) and graph.depth == 4
    assert graph.parameters == 220 + 105 and graph.activations == 7 * (20 + 20 + 5 + 5) and graph.batch == 7
    assert graph.flops == 2 * 7 * (200 + 100)

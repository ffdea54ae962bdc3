"""DISC: slices fill the period and follow trends, memory never overflows, and accuracy comes sooner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from laconic.cluster.decision import Decision
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.disc import Disc
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, Outage, replay
from laconic.cluster.sharing.slices import Trend, admits, slices, trend
from laconic.cluster.state import Event, State
from laconic.cluster.tuning import Saturating
from laconic.errors import ClusterError

GB = 1e9


@dataclass(frozen=True)
class Watched(Policy):
    """A policy that is watched: what every job has done at each decision, and the grants of each."""

    inner: Policy
    seen: list[tuple[float, np.ndarray, Decision]] = field(default_factory=list)

    def init(self) -> Any:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        decision, memory = self.inner.decide(state, events, memory)
        self.seen.append((state.now, state.done(np.arange(len(state.jobs))), decision))
        return decision, memory


@pytest.mark.technique("disc", check=1)
@pytest.mark.parametrize("seed", range(5))
def test_slices_sum_to_the_period_and_equal_trends_give_equal_slices(seed: int) -> None:
    draws = np.random.default_rng(seed)
    for count in (1, 2, 5, 9):
        trends = [
            None if draws.random() < 0.2 else Trend(*map(float, draws.exponential((1e-3, 0.05)))) for _ in range(count)
        ]
        found = slices(trends, 60.0)
        assert sum(found) == pytest.approx(60.0) and min(found) >= 0.1 * 60 / count - 1e-9
        for equal in (Trend(0.0, 0.0), Trend(3e-4, 0.01), None):
            assert slices([equal] * count, 60.0) == pytest.approx([60.0 / count] * count)
    with pytest.raises(ClusterError, match="slices are for"):
        slices([], 60.0)


@pytest.mark.technique("disc", check=1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_other_slices_are_expected_to_gain_more(seed: int) -> None:
    draws = np.random.default_rng(seed)
    trends = [Trend(*map(float, draws.uniform((1e-4, 0.02), (2e-3, 0.2)))) for _ in range(3)]

    def gain(parts: Sequence[float]) -> float:
        return sum(t.slope / t.decay * (1 - np.exp(-t.decay * part)) for t, part in zip(trends, parts, strict=True))

    best = max(gain((i, j, 60 - i - j)) for i in range(61) for j in range(61 - i))
    assert gain(slices(trends, 60.0, least=0.0)) >= best - 1e-12
    assert slices([Trend(1e-3, 0.02), Trend(0.0, 0.0)], 60.0, least=0.0) == pytest.approx([60.0, 0.0])
    assert slices([Trend(1e-3, 0.02), None], 60.0)[1] >= 29


def test_the_trend_is_the_slope_at_the_end_and_how_it_fell() -> None:
    assert trend([(0.0, 0.0)]) is None
    assert trend([(0.0, 0.1), (10.0, 0.4)]) == pytest.approx((0.03, 0.0))
    curve = Saturating(1000.0, 0.9, 80.0, 10.0)
    found = trend([(0.0, 0.9), *((t, curve.accuracy(t)) for t in (40.0, 50.0, 60.0))])
    assert found is not None and found.decay == pytest.approx(1 / 80)
    assert found.slope == pytest.approx(0.9 / 80 * np.exp(-60 / 80), rel=0.002)
    assert trend([(0.0, 0.0), (10.0, 0.1), (20.0, 0.3)]) == pytest.approx((0.02, 0.0))  # it is not expected to grow on
    assert trend([(0.0, 0.0), (10.0, 0.5), (20.0, 0.4)]) == (0.0, 0.0)


@pytest.mark.technique("disc", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_memory_never_overflows_and_slices_fill_every_gpu(seed: int) -> None:
    draws = np.random.default_rng(seed)
    jobs = []
    for i in range(24):
        keeps, needs = draws.uniform(0.2, 3) * GB, draws.uniform(1, 9) * GB
        progress = Saturating(float(draws.uniform(100, 900)), 0.9, float(draws.uniform(50, 900)), 60.0)
        jobs.append(Job(f"t{i}", 40.0 * i, 1, progress, gpu_memory_bytes=keeps + needs, gpu_persistent_bytes=keeps))
    cluster = Cluster(tuple(Host(f"h{i}", 2, gpu_memory_bytes=16 * GB) for i in range(2)))
    watched = Watched(Disc())
    outcome = replay(jobs, cluster, watched, Costs(restart=50.0))
    most = 0
    for _, _, decision in watched.seen:
        by_device: dict[tuple[int, int], list[int]] = {}
        for job, grant in decision.grants.items():
            by_device.setdefault(grant.devices[0], []).append(job)
        for there in by_device.values():
            about = [outcome.jobs[job] for job in there]
            assert sum(decision.grants[job].gpus for job in there) == pytest.approx(1.0)
            keeps = sum(job.gpu_persistent_bytes for job in about)
            assert keeps + max(job.gpu_ephemeral_bytes for job in about) <= 16 * GB
            most = max(most, len(there))
    assert most > 3 and outcome.parts[0].max() > 0 and outcome.restarts.sum() == 0
    assert sum(job.gpu_memory_bytes for job in outcome.jobs[:4]) > 16 * GB  # they would not fit side by side


def test_relaxed_pack_counts_the_largest_iteration_once() -> None:
    assert admits([(2.0, 8.0), (3.0, 6.0)], (2.0, 9.0), 16.0)
    assert not admits([(2.0, 8.0), (3.0, 6.0)], (2.1, 9.0), 16.0)
    assert not admits([], (10.0, 7.0), 16.0)


def tuning(seed: int) -> list[Job]:
    """Trials of about a quarter of an hour: of those of each GPU two saturate after a few hundredths of that, and two
    after most."""
    draws, jobs = np.random.default_rng(seed), list[Job]()
    for i in range(8):
        work, best = float(draws.uniform(900, 1000)), float(draws.uniform(0.8, 0.95))
        scale = work * float(draws.uniform(0.02, 0.05) if i % 4 < 2 else draws.uniform(0.5, 0.9))
        jobs.append(Job(f"trial{i}", 0.0, 1, Saturating(work, best, scale, work / 40)))
    return jobs


def result(seed: int, policy: Disc) -> tuple[float, float]:
    """Return the accuracies of all at half of the makespan, summed, and the mean completion time."""
    watched = Watched(policy)
    outcome = replay(tuning(seed), Cluster.uniform(1, 2), watched)
    done = next(done for now, done, _ in watched.seen if now >= outcome.makespan / 2)
    total = sum(job.progress.accuracy(float(work)) for job, work in zip(outcome.jobs, done, strict=True))  # type: ignore[attr-defined]
    return total, outcome.mean_completion_time


@pytest.mark.technique("disc", check=2)
@pytest.mark.parametrize("seed", range(5))
def test_accuracy_comes_sooner_than_with_equal_slices(seed: int) -> None:
    """What can be gained depends on the curves: with these, slices by someone who knew them would gain 10 to 13 %.
    Where all trials of a GPU saturate about as fast, nobody would gain more than a few."""
    (total, mean), (equal, equal_mean) = (result(seed, policy) for policy in (Disc(), Disc(least=1.0)))
    assert total >= 1.1 * equal
    assert mean <= equal_mean * (1 + 1e-9)


def test_what_is_not_for_it_is_refused_and_lost_hosts_are_survived() -> None:
    with pytest.raises(ClusterError, match="several GPUs"):
        replay([Job("wide", 0.0, 2, Fixed(1.0))], Cluster.uniform(1, 2), Disc())
    outcome = replay(tuning(0), Cluster.uniform(2, 1), Disc(), outages=[Outage(0, 500.0, 3000.0)])
    assert np.all(np.isfinite(outcome.completed)) and outcome.restarts.sum() > 0
    plain = [Job(f"job{i}", 0.0, 1, Fixed(120.0)) for i in range(3)]
    assert replay(plain, Cluster.uniform(1, 1), Disc()).completed.tolist() == pytest.approx([360.0] * 3)

"""Optimus: fits of speed and loss, GPUs by marginal gain."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.marginal_gain import Demand, by_marginal_gain
from laconic.cluster.optimus_fits import LossCurve, ServerSpeed, fit_loss, fit_speed
from laconic.cluster.placement import emptiest, even
from laconic.cluster.policies.optimus import Optimus
from laconic.cluster.replay import replay
from laconic.cluster.room import Room
from laconic.errors import ClusterError
from tests.cluster.pollux_data import ALL, published, published_times, run

TRIED = [(1, 1), (1, 2), (2, 1), (2, 4), (4, 3), (6, 8)]
coefficient = st.one_of(st.just(0.0), st.floats(0.01, 5.0))
AS_POLLUX_AUTHORS = Optimus(60.0, even=False)


@pytest.mark.technique("optimus", check=1)
@given(st.tuples(st.floats(0.01, 5.0), *[coefficient] * 3), st.integers(0, 1), st.floats(0.01, 5.0))
@settings(max_examples=20, deadline=None)
def test_both_speed_fits_recover_planted_coefficients(
    times: tuple[float, ...], synchronous: int, per_sample: float
) -> None:
    batch = 64 if synchronous else 0
    true = ServerSpeed((per_sample / 64, *times) if synchronous else times, batch)
    samples = [(p, w, true.steps_per_second(p, w)) for p, w in TRIED]
    found = fit_speed(samples, batch)
    np.testing.assert_allclose(found.times, true.times, rtol=1e-6, atol=1e-6)
    assert true.steps_per_second(3, 5) == pytest.approx(
        1 / (per_sample / 5 + times[0] + times[1] * 5 / 3 + times[2] * 5 + times[3] * 3)
        if synchronous
        else 5 / (times[0] + times[1] * 5 / 3 + times[2] * 5 + times[3] * 3)
    )


def test_samples_that_do_not_tell_coefficients_apart_are_refused() -> None:
    with pytest.raises(ClusterError, match="measure with more numbers"):
        fit_speed([(1, 1, 2.0), (2, 2, 2.0), (3, 3, 2.0), (4, 4, 1.0), (1, 1, 2.0), (5, 5, 1.0)])


@given(st.floats(1e-3, 0.1), st.floats(0.5, 2.0), st.floats(0.0, 0.5), st.floats(0.5, 20.0))
@settings(max_examples=20, deadline=None)
def test_a_loss_curve_is_found_in_spite_of_outliers(falls: float, begins: float, rests: float, scale: float) -> None:
    true = LossCurve(scale, (falls, begins, rests))
    steps = [float(step) for step in range(20, 2000, 20)]
    losses = [true.loss(step) * (3.0 if step in (600.0, 1100.0) else 1.0) for step in steps]
    found = fit_loss(steps, losses)
    for step in (0, 500, 3000, 20_000):
        assert found.loss(step) == pytest.approx(true.loss(step), rel=0.02)
    threshold = 1e-3 * true.loss(0)
    asked, known = (curve.steps_to_converge(50, threshold) for curve in (found, true))
    assert asked == pytest.approx(known, rel=0.1, abs=50)
    epochs = known // 50
    drops = [true.loss(50 * e) - true.loss(50 * (e + 1)) for e in range(epochs)]
    assert all(drop < threshold for drop in drops[epochs - 3 :])
    assert epochs == 3 or drops[epochs - 4] >= threshold


speeds = st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 0.1), st.floats(0.0, 0.1))


@pytest.mark.technique("optimus", check=1)
@given(
    st.lists(st.tuples(speeds, st.integers(10, 1000)), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 9)
)
@settings(max_examples=20, deadline=None)
def test_the_greedy_allocation_stops_when_nothing_fits_or_nobody_gains(
    made: list[tuple[tuple[float, ...], int]], gpus: int, cores: int
) -> None:
    """A worker takes a GPU and a core, a server two cores."""
    needs = ((0.0, 2.0), (1.0, 1.0))

    def demand(times: tuple[float, ...], steps: int) -> Demand:
        speed = ServerSpeed((1.0, *times), batch=64)
        return Demand(lambda counts: steps / speed.steps_per_second(*counts), needs, (8, 8))

    demands = [demand(*facts) for facts in made]
    given_ = by_marginal_gain(demands, [gpus, cores])
    used = np.sum([np.array(counts) @ np.array(needs) for counts in given_], axis=0)
    left = np.array([gpus, cores]) - used
    assert np.all(left >= 0)
    for job, (counts, wanted) in enumerate(zip(given_, demands, strict=True)):
        assert counts == (0, 0) or min(counts) >= 1
        if counts == (0, 0):
            assert np.any(np.array(needs).sum(axis=0) > [gpus, cores]) or any(map(any, given_[:job]))
            continue
        for kind in (0, 1):
            more = (counts[0] + (kind == 0), counts[1] + (kind == 1))
            gains = wanted.seconds(counts) - wanted.seconds(more)
            assert gains <= 0 or np.any(np.array(needs[kind]) > left) or counts[kind] == 8


@pytest.mark.technique("optimus", check=1)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=4), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_greedy_is_best_where_each_worker_saves_less_than_the_last(works: list[int], gpus: int) -> None:
    """Against all ways to hand out GPUs, where all jobs can have one."""
    if len(works) > gpus:
        return
    demands = [Demand(lambda counts, w=work: w / counts[0] + counts[0], [[1.0]], (8,)) for work in works]  # type: ignore[misc]
    found = sum(d.seconds(counts) for d, counts in zip(demands, by_marginal_gain(demands, [gpus]), strict=True))
    ways = (way for way in itertools.product(range(1, 9), repeat=len(works)) if sum(way) <= gpus)
    assert found == pytest.approx(min(sum(d.seconds((n,)) for d, n in zip(demands, way, strict=True)) for way in ways))


def test_workers_are_spread_evenly_over_the_fewest_hosts() -> None:
    room = Room(Cluster.uniform(4, 4))
    grant = emptiest(room, 3)
    assert grant is not None
    room.take(Job("other", 0.0, 3, Fixed(1.0)), grant)
    spread = even(room, 6)
    assert spread is not None and sorted(count for _, count in spread.by_host) == [3, 3]
    assert 0 not in dict(spread.by_host)
    whole = even(room, 3)
    assert whole is not None and whole.by_host == ((1, 3),)
    assert even(room, 13) is None and emptiest(room, 13) is not None and emptiest(room, 14) is None


def test_jobs_that_do_not_know_their_steps_are_refused() -> None:
    with pytest.raises(ClusterError, match="job0 does not say"):
        replay([Job("job0", 0.0, 1, Fixed(1.0))], Cluster.uniform(1, 1), Optimus())


def test_on_one_of_polluxs_workloads_every_job_takes_as_long_as_in_its_authors_simulator() -> None:
    outcome = run(AS_POLLUX_AUTHORS, 3, "workers")
    np.testing.assert_array_equal(outcome.completion_times, published_times("optimus", 3, outcome))


@pytest.mark.long
@pytest.mark.evidence("optimus")
@pytest.mark.technique("optimus", check=2)
def test_on_polluxs_workloads_every_job_takes_as_long_as_in_its_authors_simulator() -> None:
    means = []
    for workload in ALL:
        outcome = run(AS_POLLUX_AUTHORS, workload, "workers")
        means.append(outcome.mean_completion_time)
        np.testing.assert_array_equal(outcome.completion_times, published_times("optimus", workload, outcome))
    assert np.mean(means) == pytest.approx(published("optimus")["mean"]) == pytest.approx(5681.93, abs=0.01)
    assert np.mean(means) / published("tiresias")["mean"] == pytest.approx(1.41, abs=0.005)


def test_the_papers_own_interval_and_placement_work_on_a_workload() -> None:
    outcome = run(Optimus(), 3, "workers")
    assert 0.5 < outcome.mean_completion_time / published("optimus")["avgs"]["workload-3"] < 2

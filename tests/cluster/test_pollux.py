"""Pollux: goodput, its fit, and the search for GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Decision
from laconic.cluster.genetic import Problem, search
from laconic.cluster.goodput import Choices, Limits, Sample, StepModel, efficiency, fit_steps
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.optimus import Optimus
from laconic.cluster.policies.pollux import Agent, Memory, Pollux, speedups_of
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.readers.pollux import read_workload
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from tests.cluster.pollux_data import ALL, published, run
from tests.data import folder_of

TIRESIAS = Tiresias(by_entry=True, interval=60.0)
positive = st.floats(1e-6, 1e6)
MODEL = StepModel((0.05, 0.002), (0.08, 0.003), (0.02, 0.001), 2.0)
LIMITS = Limits(128, 4096, 32, 512)


@pytest.mark.technique("pollux", check=1)
@given(st.integers(1, 10_000), positive, positive, st.lists(st.integers(0, 100_000), min_size=2, max_size=6))
def test_efficiency_is_one_at_the_tuned_batch_and_falls(tuned: int, sqr: float, var: float, more: list[int]) -> None:
    assert efficiency(tuned, tuned, sqr, var) == pytest.approx(1.0, rel=1e-12)
    batches = np.array(sorted({tuned + extra for extra in more}), dtype=float)
    found = np.asarray(efficiency(batches, tuned, sqr, var))
    assert np.all(np.diff(found) < 0)
    noise = tuned * var / sqr
    np.testing.assert_allclose(found, (noise + tuned) / (noise + batches), rtol=1e-9)
    np.testing.assert_allclose(efficiency(batches, tuned, sqr, 0.0), tuned / batches, rtol=1e-12)
    np.testing.assert_allclose(efficiency(batches, tuned, 1.0, 1e-14), tuned / batches, rtol=1e-6)


def sample(hosts: int, workers: int, local: int) -> Sample:
    passes = MODEL.compute[0] + MODEL.compute[1] * local
    step = MODEL.step_seconds(hosts > 1, np.array(workers), np.array(local), np.array(0))
    return Sample(hosts, workers, local, passes, float(step))


MEASURED = tuple(sample(*x) for x in ((1, 1, 32), (1, 2, 64), (1, 4, 64), (2, 4, 64), (2, 8, 100), (4, 12, 128)))


def test_a_fit_gives_back_what_was_measured_and_begins_with_perfect_scaling() -> None:
    for count in range(1, len(MEASURED) + 1):
        model = fit_steps(MEASURED[:count])
        for hosts, workers, local, _, seconds in MEASURED[:count]:
            found = model.step_seconds(hosts > 1, np.array(workers), np.array(local), np.array(0))
            assert float(found) == pytest.approx(seconds, rel=0.05)
    first = fit_steps(MEASURED[:1])
    few, none = np.array(32), np.array(0)
    alone = float(first.step_seconds(False, np.array(1), few, none))
    assert float(first.step_seconds(True, np.array(16), few, none)) == pytest.approx(alone, rel=1e-3)
    near = fit_steps(MEASURED[:3])  # several hosts are taken for hardly slower than one
    assert near.across[0] == pytest.approx(1.1 * near.within[0])


def test_the_best_batch_is_as_good_as_the_best_of_all() -> None:
    choices = Choices(LIMITS)
    for workers, several, noise in itertools.product((1, 3, 16), (False, True), (0.1, 1.0, 30.0)):
        goodput, batch = choices.best(MODEL, 1.0, noise, several, slice(workers - 1, workers))
        local, before = np.arange(32, 513)[:, None], np.arange(8)
        whole = workers * local * (before + 1)
        possible = (whole >= 128) & (whole <= 4096) & ((workers > 1) | (whole == 128) | (before > 0))
        seconds = MODEL.step_seconds(several, np.array(workers), local, before)
        best = np.where(possible, whole / seconds * efficiency(whole, 128, 1.0, noise), 0.0).max()
        assert goodput[0] == pytest.approx(best, rel=0.02)
        assert 128 <= batch[0] <= 4096 + workers * 8


@pytest.mark.technique("pollux", check=1)
@given(st.integers(1, 4), st.floats(0.01, 100.0))
@settings(max_examples=20, deadline=None)
def test_the_speedup_of_a_fair_share_is_one(fair: int, noise: float) -> None:
    agent = Agent(LIMITS, model=MODEL, grad_sqr=1.0, grad_var=noise)
    found = speedups_of(agent, most=16, fair=fair, on_one=4)
    assert found[0, fair - 1] == pytest.approx(1.0)
    assert np.all(np.diff(found[0, :4]) > 0) and np.all(found[0, 4:] == 0)  # no host has more
    assert np.all(found[1, 1:4] < found[0, 1:4])  # several hosts are slower
    assert speedups_of(Agent(LIMITS), 2, fair, 4).tolist() == [[1 / fair, 2 / fair]] * 2


def problem(jobs: int, hosts: int, seed: int, moved: float = 0.9) -> Problem:
    rng = np.random.default_rng(seed)
    capacity = rng.integers(1, 5, hosts).astype(np.int8)
    speedups = np.zeros((jobs, 2, 4 * hosts + 1))
    speedups[:, :, 1:] = np.cumsum(rng.random((jobs, 2, 4 * hosts)), axis=2)
    empty = np.zeros((jobs, hosts), dtype=np.int8)
    return Problem(empty, capacity, rng.integers(1, 4 * hosts, jobs), speedups, np.full(jobs, moved), -1.0)


@pytest.mark.technique("pollux", check=1)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_repaired_states_give_no_host_more_than_it_has(jobs: int, hosts: int, seed: int) -> None:
    rng, made = np.random.default_rng(seed), problem(jobs, hosts, seed)
    states = rng.integers(0, 5, (20, jobs, hosts)).astype(np.int8)
    for found in (made.repaired(states.copy(), rng), made.repaired(made.mutated(states.copy(), rng), rng)):
        assert np.all(found >= 0) and np.all(found.sum(axis=1) <= made.capacity)
        assert np.all(found.sum(axis=2) <= made.most)
        wide = (found > 0) & (np.count_nonzero(found, axis=2) > 1)[:, :, None]
        assert np.all(wide.sum(axis=1) <= 1)
    kept = made.repaired(states.copy(), rng)
    np.testing.assert_array_equal(kept, made.repaired(kept.copy(), rng))


def test_a_job_that_moves_counts_less_and_one_that_stays_does_not() -> None:
    made = problem(2, 3, 0, moved=0.25)
    states = np.zeros((2, 2, 3), dtype=np.int8)
    states[1, 0, 0] = 1
    one = made.speedups[0, 0, 1] * 0.25
    harmonic = 2 / (1 / (one + 1e-3) + 1 / 1e-3)
    np.testing.assert_allclose(made.values(states), [1e-3, harmonic])


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_best_of_all_small_states(seed: int) -> None:
    made = problem(3, 2, seed)
    cells = [range(int(count) + 1) for count in (*made.capacity, *made.capacity, *made.capacity)]
    states = np.array(list(itertools.product(*cells)), dtype=np.int8).reshape(-1, 3, 2)
    possible = (made.repaired(states.copy(), np.random.default_rng(0)) == states).all(axis=(1, 2))
    best = made.values(states[possible]).max()
    found = search(made, made.present[None], 40, 40, np.random.default_rng(seed))
    assert made.values(found[:1])[0] == pytest.approx(best)


@dataclass(frozen=True)
class Watched(Policy):
    """Pollux, with what each job got at every decision written down."""

    inner: Pollux = field(default_factory=Pollux)
    seen: list[dict[int, tuple[int, int]]] = field(default_factory=list, compare=False)

    @property
    def every(self) -> float:
        return self.inner.every

    def init(self) -> Memory:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        decision, memory = self.inner.decide(state, events, memory)
        self.seen.append({job: (len(grant.slots), grant.batch) for job, grant in decision.grants.items()})
        return decision, memory


@pytest.mark.long
def test_jobs_explore_by_doubling_and_change_their_batches_without_restarts() -> None:
    folder = folder_of("pollux")
    jobs = read_workload(folder / "workloads" / "workload-3.csv", folder / "traces", "batch")[:12]
    jobs = [job for job in jobs if job.kind in ("cifar10", "ncf")]
    watched = Watched(Pollux(generations=15, population=30))
    outcome = replay(jobs, Cluster.uniform(4, 4), watched, Costs(30.0, 30.0))
    most: dict[int, int] = {}
    changes = dict.fromkeys(range(len(jobs)), 0)
    last: dict[int, tuple[int, int]] = {}
    for seen in watched.seen:
        for job, (workers, batch) in seen.items():
            assert workers <= max(2 * most.get(job, 0), 1)
            changes[job] += last.get(job, (workers, batch)) != (workers, batch)
            last[job] = workers, batch
        for job, (workers, _) in seen.items():
            most[job] = max(most.get(job, 0), workers)
    assert max(most.values()) >= 8
    kinds = {job.kind for job in outcome.jobs}
    assert kinds == {"cifar10", "ncf"}
    for number, done in enumerate(outcome.jobs):
        if done.kind == "ncf":
            assert most[number] == 1 and last[number][1] == 0  # as it was submitted
        else:
            assert changes[number] > outcome.restarts[number]
            assert last[number][1] > 128


def test_jobs_that_do_not_measure_themselves_are_refused() -> None:
    with pytest.raises(ClusterError, match="job0 does not measure"):
        replay([Job("job0", 0.0, 1, Fixed(1.0))], Cluster.uniform(1, 1), Pollux())


QUICK = Pollux(generations=10)
"""With a tenth of the generations, which is worse by a few per cent."""


@pytest.mark.long
@pytest.mark.evidence("pollux")
def test_jobs_of_a_workload_take_as_long_as_published() -> None:
    mean = run(Pollux(), 3, "batch").mean_completion_time
    assert mean == pytest.approx(published("pollux")["avgs"]["workload-3"], rel=0.05)


@pytest.mark.long
@pytest.mark.evidence("pollux")
@pytest.mark.technique("pollux", check=2)
@pytest.mark.technique("tiresias", check=3)
@pytest.mark.technique("optimus", check=2)
def test_on_eight_workloads_the_mean_is_as_published_and_below_the_others() -> None:
    """The others' figures are exact: see their own tests."""
    mean = np.mean([run(QUICK, workload, "batch").mean_completion_time for workload in ALL])
    gangs, elastic = published("tiresias")["mean"], published("optimus")["mean"]
    assert mean == pytest.approx(published("pollux")["mean"], rel=0.05)
    assert mean <= 0.75 * gangs and mean <= 0.60 * elastic
    assert gangs / mean == pytest.approx(1.47, rel=0.15)
    assert elastic / mean == pytest.approx(2.07, rel=0.15)


@pytest.mark.long
@pytest.mark.technique("pollux", check=3)
@pytest.mark.parametrize(("load", "ratio"), [("0.5", 0.73), ("1.5", 0.60), ("2.0", 0.53)])
def test_the_ranking_holds_at_other_loads(load: str, ratio: float) -> None:
    found = run(QUICK, 3, "batch", load).mean_completion_time
    gangs = run(TIRESIAS, 3, load=load).mean_completion_time
    elastic = run(Optimus(60.0, even=False), 3, "workers", load).mean_completion_time
    assert found < min(gangs, elastic)
    assert found / gangs < 1.15 * ratio

"""Fluid: widths by water filling, and a search that ends sooner with the same trials."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.epochs import InEpochs
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.hpo.halving import Rung, successive_halving
from laconic.cluster.hpo.trial import Training
from laconic.cluster.hpo.widths import unscaled, widths
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.fifo import Fifo
from laconic.cluster.policies.fluid import Fluid
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.sharing.throughput import Throughput
from laconic.cluster.state import Completion
from laconic.errors import ClusterError
from tests.cluster.hpo.processes import Processes, Trial, loss_of, train

heights = st.lists(st.floats(0, 1e4), min_size=1, max_size=40)


@pytest.mark.technique("fluid", check=1)
@given(heights, st.integers(1, 64), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_widths_make_up_the_gpus_and_keep_to_their_bounds(work: list[float], gpus: int, packed: int, most: int) -> None:
    first, found = unscaled(work, gpus, packed, most), widths(work, gpus, packed, most)
    assert found.sum() == pytest.approx(gpus)
    assert np.all(first >= 1 / packed) and np.all(first <= most)
    np.testing.assert_allclose(found / found.sum(), first / first.sum())
    order = np.argsort(work, kind="stable")
    assert np.all(np.diff(found[order]) >= -1e-9)  # who has more to do is no narrower
    for i, j in itertools.pairwise(order):
        assert work[i] != work[j] or found[i] == found[j]


@pytest.mark.technique("fluid", check=1)
def test_widths_are_the_printed_formula() -> None:
    np.testing.assert_array_equal(unscaled([50, 30, 15, 5], 8, 4, 3), [3, 2, 1, 0.25])
    np.testing.assert_allclose(widths([50, 30, 15, 5], 8, 4, 3), np.array([3, 2, 1, 0.25]) * 8 / 6.25)
    for gpus in (1, 3, 8):
        assert widths([7.0] * gpus, gpus, 2, 4).tolist() == [1.0] * gpus
    with pytest.raises(ClusterError, match="not below 0"):
        widths([-1.0], 1, 2, 4)


class Trials:
    """Trials of unequal speeds whose losses fall with what they have been trained for."""

    def __init__(self, seed: int, count: int = 27) -> None:
        draws = np.random.default_rng(seed)
        self.seconds = 10 ** draws.uniform(0.6, 1.4, count)  # of an iteration on one GPU
        self.busy = draws.uniform(0.35, 1.0, count)  # the share of a GPU that it keeps busy
        self.limits, self.rates = draws.uniform(0.1, 1.0, count), draws.uniform(0.2, 1.0, count)

    def loss(self, trial: int, iterations: float) -> float:
        return float(self.limits[trial] + 2 / (1 + self.rates[trial] * iterations))

    def job(self, trial: int, iterations: float) -> Job:
        seconds = float(iterations * self.seconds[trial])
        training = Training(seconds, (1.0, 1.85, 2.6, 3.3), Throughput.knee(float(self.busy[trial])))
        return Job(f"trial{trial}", 0.0, 1, InEpochs(training, round(iterations)), least=1, most=4)


def search(trials: Trials, policy: Policy) -> tuple[list[Rung], list[Outcome]]:
    """Successive halving, every group of which a policy runs."""
    outcomes: list[Outcome] = []

    def run(group: Sequence[int], reached: float, until: float) -> Mapping[int, float]:
        jobs = [trials.job(trial, until - reached) for trial in group]
        outcomes.append(replay(jobs, Cluster.uniform(2, 4), policy, Costs(start=2.0, restart=5.0)))
        computed = outcomes[-1].parts[2:].sum(axis=0)
        assert np.all(computed > 0)
        return {trial: trials.loss(trial, until) for trial in group}

    return successive_halving(27, run, budget=9), outcomes


@pytest.mark.technique("fluid", check=2)
@pytest.mark.parametrize("seed", range(6))
def test_a_search_ends_sooner_with_the_same_trials(seed: int) -> None:
    trials = Trials(seed)
    (alone, before), (together, after) = search(trials, Fifo()), search(trials, Fluid())
    assert [rung.trials for rung in alone] == [rung.trials for rung in together]
    assert [len(rung.trials) for rung in together] == [27, 9, 3, 1]
    ratio = sum(x.makespan for x in before) / sum(x.makespan for x in after)
    assert ratio >= 1.5


def test_trials_of_equal_work_get_all_gpus_and_are_left_alone_until_one_ends() -> None:
    jobs = [Job(f"trial{i}", 0.0, 1, InEpochs(Training(80.0, (1.0, 2.0, 3.0, 4.0)), 8), least=1, most=4)
            for i in range(3)]  # fmt: skip
    outcome = replay(jobs, Cluster.uniform(2, 4), Fluid(), keep_log=True)
    changes = [(logged.time, logged.changes) for logged in outcome.log]
    assert [time for time, _ in changes[:2]] == [0.0, 10.0]  # one GPU each until the first iteration is known
    assert sorted(len(grant.slots) for _, grant in changes[1][1].resize) == [2, 3, 3]
    assert len(changes) == 3 and changes[2][0] == pytest.approx(10 + 70 / 3)  # when the two that had 3 are done
    assert [len(grant.slots) for _, grant in changes[2][1].resize] == [4]
    assert outcome.makespan == pytest.approx(10 + 70 / 3 + (70 - 2 * 70 / 3) / 4)


def test_no_more_trials_share_a_gpu_than_fit() -> None:
    jobs = [Job(f"trial{i}", 0.0, 1, InEpochs(Training(10.0 + i), 10)) for i in range(9)]
    log = replay(jobs, Cluster.uniform(1, 2), Fluid(packed=3), keep_log=True).log
    running: dict[int, Grant] = {}
    most = 0
    for logged in log:
        for event in logged.events:
            if isinstance(event, Completion):
                del running[event.job]
        running = {job: grant for job, grant in running.items() if job not in logged.changes.stop}
        running |= dict((*logged.changes.start, *logged.changes.resize))
        there = [sum(grant.slots[0].device == device for grant in running.values()) for device in range(2)]
        shares = [sum(g.slots[0].share for g in running.values() if g.slots[0].device == d) for d in range(2)]
        assert max(there) <= 3 and shares == pytest.approx([1.0 if count else 0.0 for count in there])
        most = max(most, *there)
    assert most == 3


@pytest.mark.long
@pytest.mark.technique("fluid", check=2)
def test_real_processes_on_two_cores_end_sooner_with_the_same_trials() -> None:
    processes = Processes(2)
    try:
        for seed in (0, 1):
            found = [searched_by_processes(seed, policy, processes) for policy in (Fifo(), Fluid(most=2))]
            (alone, before, one), (together, after, two) = found
            assert [rung.trials for rung in alone] == [rung.trials for rung in together]
            assert [rung.losses for rung in alone] == [rung.losses for rung in together]  # to the last bit
            assert (one, two) == (1, 2)
            assert before / after >= 1.5
    finally:
        processes.close()


def searched_by_processes(seed: int, policy: Policy, processes: Processes) -> tuple[list[Rung], int, int]:
    """Successive halving over rates and batches; with it its rounds, and the most devices that a trial had."""
    draws = np.random.default_rng(seed)
    trials = [
        Trial(float(10 ** draws.uniform(-3, -1)), 2 ** int(draws.integers(1, 5)), np.zeros(12)) for _ in range(27)
    ]
    rounds, widest = 0, 0

    def run(group: Sequence[int], reached: float, until: float) -> Mapping[int, float]:
        nonlocal rounds, widest
        took, width = train([trials[i] for i in group], round(until - reached), policy, processes)
        rounds, widest = rounds + took, max(widest, width)
        return {i: loss_of(trials[i].weights) for i in group}

    return successive_halving(27, run, budget=9), rounds, widest

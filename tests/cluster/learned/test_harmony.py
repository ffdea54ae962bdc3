"""Harmony: actions outside the mask are never taken, and what it learned keeps jobs apart that disturb each other."""

from __future__ import annotations

import numpy as np
import pytest

from laconic.cluster.job import Job
from laconic.cluster.learned.actor_critic import fit_speeds, predicted, reward_of, train
from laconic.cluster.learned.scorer import Scorer, fresh
from laconic.cluster.learned.task_placement import Batch, Task, features_of, placed_by
from laconic.cluster.policies.harmony import Harmony
from laconic.errors import ClusterError
from tests.cluster.learned.harmony_setup import KINDS, USUAL, Balanced, batches, drawn, job, measured, run

FEATURES = features_of(len(KINDS))


@pytest.mark.technique("harmony", check=1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("explores", [False, True])
def test_masked_actions_are_never_taken_and_capacities_hold(seed: int, explores: bool) -> None:
    draws, scorer = np.random.default_rng(seed), fresh(FEATURES, seed)
    placed = 0
    for _ in range(40):
        batch = drawn(draws)
        before = batch.free.copy()
        steps = placed_by(batch, scorer, draws if explores else None, together=0.5)
        hosts = len(before)
        assert all(step.mask[step.action] for step in steps)
        assert [step.action for step in steps].index(len(batch.jobs) * hosts) == len(
            steps
        ) - 1  # done, once, at the end
        assert (batch.placed.sum(axis=0) + batch.free == before).all() and batch.free.min() >= 0
        for task, row in zip(batch.jobs, batch.placed, strict=True):
            assert row.sum() in (0, task.workers)
            placed += row.any()
    assert placed > 10  # the network may choose to be done


@pytest.mark.technique("harmony", check=1)
@pytest.mark.parametrize("seed", range(3))
def test_decisions_of_a_replay_respect_capacities_and_place_whole_gangs(seed: int) -> None:
    draws = np.random.default_rng(seed)
    jobs: list[Job] = []
    for i in range(25):  # more than fit: some wait
        kind, workers = int(draws.integers(5)), int(draws.integers(1, 4))
        jobs.append(job(f"job{i}", float(draws.uniform(0, 900)), kind, workers, float(draws.uniform(100, 900))))
    outcome = run(jobs, Harmony(fresh(FEATURES, seed).weights, KINDS, USUAL))  # the driver refuses what does not fit
    assert not np.isnan(outcome.completed).any() and outcome.parts[0].sum() > 0
    np.testing.assert_allclose(outcome.parts.sum(axis=0), outcome.completion_times)


def test_a_masked_action_and_an_unknown_kind_are_refused() -> None:
    batch = Batch(2, np.array([0, 3]), [], [Task(0, 2), Task(1, 1)])
    assert batch.mask.tolist() == [False, True, False, True, False]  # nothing runs: done would leave all waiting
    with pytest.raises(ClusterError, match="is masked"):
        batch.take(0)
    assert not batch.take(1)
    assert batch.mask.tolist() == [False, True, False, False, False]  # the job that was begun is finished first
    with pytest.raises(ClusterError, match="another"):
        Batch(1, np.array([1]), [], [Task(1, 1)])
    with pytest.raises(ClusterError, match="did not learn"):
        run(batches(0, 1)[0], Harmony((), KINDS[:1]))


def test_the_reward_is_the_share_of_their_work_that_jobs_do() -> None:
    batch = Batch(len(KINDS), np.array([4, 4, 4]), [], [Task(0, 1, 2.0), Task(0, 1, 0.5)])
    for action in (0, 3):
        batch.take(action)
    apart = Batch(len(KINDS), np.array([4, 4, 4]), [], [Task(0, 1, 2.0), Task(0, 1, 0.5)])
    for action in (0, 4):
        apart.take(action)
    together = measured(batch)
    assert reward_of(batch, together) == pytest.approx(together[0] / 2 + together[1] / 0.5)
    assert reward_of(apart, measured(apart)) == pytest.approx(2.5) and together.max() < 0.9


@pytest.mark.long
def test_what_was_learned_is_better_than_balance_and_packing() -> None:
    """Sixty batches of four jobs that were not seen: 29 to 31 % below load balancing and 2 to 6 % below packing, by the
    seed, after 100 to 300 iterations. The best of all placements, found for fifteen of them, is 11 % below packing. A
    tenth below packing, as the catalogue asks, was not reached."""
    model = fit_speeds(drawn, measured, 200, 0)
    draws = np.random.default_rng(99)
    errors = []
    for _ in range(30):
        batch = drawn(draws)
        placed_by(batch, Scorer(FEATURES), draws)
        if batch.everywhere:
            errors.append(predicted(model)(batch) - measured(batch))
    assert np.sqrt((np.concatenate(errors) ** 2).mean()) < 0.1
    scorer = train(fresh(FEATURES, 0), drawn, predicted(model), 100, 0, rate=0.03)
    scorer = train(scorer, drawn, measured, 10, 1, rate=0.005)  # and on line
    held_out = batches(1000, 60)
    means = [
        float(np.mean([run(jobs, policy).mean_completion_time for jobs in held_out]))
        for policy in (Harmony(scorer.weights, KINDS, USUAL), Balanced(), Balanced(together=True))
    ]
    assert means[0] < 0.8 * means[1] and means[0] < means[2]

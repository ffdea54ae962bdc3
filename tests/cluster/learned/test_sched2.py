"""Sched2: placements of the level that was chosen, masks, and completion times after training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from laconic.cluster.decision import Changed, Decision
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.learned.notes import Notes
from laconic.cluster.learned.scorer import Scorer, fresh
from laconic.cluster.locality import Spread
from laconic.cluster.policies.philly import local
from laconic.cluster.policies.sched2 import FEATURES, LEVELS, Sched2, train
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, replay
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from tests.cluster.learned.sched2_setup import CLUSTER, LocalFifo, traces


@dataclass(frozen=True)
class Watched(Sched2):
    """Each of whose decisions is looked at."""

    def decide(self, state: State, events: Sequence[Event], memory: Notes | None) -> tuple[Decision, Notes | None]:
        assert memory is not None
        before = len(memory.steps)
        decision, memory = super().decide(state, events, memory)
        assert memory is not None and isinstance(decision.grants, Changed)
        taken = [step for step in memory.steps[before:] if step.action < len(step.mask) - 1]
        room, racks = state.room.copy(), [host.rack for host in state.cluster.hosts]
        for step, (job, grant) in zip(taken, decision.grants.start.items(), strict=True):
            level, workers = step.action % LEVELS, state.jobs[job].workers
            assert step.mask[step.action]
            hosts = [host for host, _ in grant.by_host]
            assert len(grant.slots) == workers
            if level < 2:
                assert len({racks[host] for host in hosts}) == 1
            if level == 0:
                assert len(hosts) == math.ceil(workers / 4)
            for other in range(level):  # a looser level is there only where it gives something else
                assert local(room, workers, other) != grant
            fits = local(room, workers, level)
            assert grant == fits
            room.take(state.jobs[job], grant)
        for step in memory.steps[before:]:
            assert step.mask.any() and (step.mask[-1] or not state.running)
        return decision, memory


@pytest.mark.technique("sched2", check=1)
@pytest.mark.parametrize("seed", range(4))
def test_placements_have_the_level_that_was_chosen(seed: int) -> None:
    draws = np.random.default_rng(seed)
    jobs = [
        Job(f"job{i}", float(draws.uniform(0, 100)), int(draws.integers(1, 9)),
            Spread(float(draws.uniform(5, 50)), (1.0, 0.8, 0.5)))
        for i in range(40)
    ]  # fmt: skip
    cluster = Cluster(tuple(Host(f"h{h}", 4, rack=str(h % 2)) for h in range(5)))
    outcome = replay(jobs, cluster, Watched(fresh(FEATURES, seed).weights, window=5, seed=seed))
    assert np.all(outcome.completed > 0)


@pytest.mark.technique("sched2", check=1)
def test_masked_actions_are_never_taken() -> None:
    draws = np.random.default_rng(0)
    for seed in range(20):
        scorer = fresh(4, seed)
        actions, mask = draws.normal(size=(9, 4)), draws.random(9) < 0.3
        mask[seed % 9] = True
        found = {scorer.choose(actions, mask, draws) for _ in range(50)} | {scorer.choose(actions, mask)}
        assert all(mask[action] for action in found)
        assert scorer.choose(actions, mask) == np.argmax(scorer.scores(actions, mask))
    with pytest.raises(ClusterError, match="masked"):
        Scorer(4).choose(np.zeros((2, 4)), np.zeros(2, dtype=bool))
    with pytest.raises(ClusterError, match="weights"):
        Scorer(4, (1.0,))


@pytest.mark.long
@pytest.mark.technique("sched2", check=2)
def test_jobs_it_has_not_seen_end_sooner_than_in_queues() -> None:
    learned = train(traces(0, 40_000, 10), CLUSTER)
    unseen = traces(40_000, 80_000, 6)

    def mean(policy: Policy) -> float:
        outcomes = [replay(jobs, CLUSTER, policy, Costs(restart=30.0)) for jobs in unseen]
        return float(np.mean([outcome.mean_completion_time for outcome in outcomes]))

    found = mean(learned)
    assert mean(LocalFifo(0)) / found >= 1.5
    assert mean(LocalFifo(3)) / found >= 1.5
    assert found <= 1.2 * mean(Srtf())

"""Policies that run jobs in an order decide as if they gave GPUs to one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.decision import Decision
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.srtf import Srtf
from laconic.cluster.policies.tiresias import Tiresias
from laconic.cluster.policy import Policy
from laconic.cluster.replay import Costs, Outage, replay
from laconic.cluster.state import Event, State

facts = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 3, 4, 6]), st.integers(1, 30)), min_size=2, max_size=25
)
outages = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 20)), max_size=2)


def shortest(policy: Srtf) -> Callable[[State, Any], list[int]]:
    def order(state: State, memory: Any) -> list[int]:
        del memory
        jobs, service = state.jobs, policy.service
        left = {job: state.remaining(job).value * (jobs[job].gpus if service else 1) for job in state.active}
        return sorted(left, key=lambda job: (left[job], job))

    return order


@dataclass(frozen=True)
class Compared(Policy):
    """A policy, each of whose decisions is made once more, job by job."""

    inner: Policy
    order: Callable[[State, Any], Sequence[int] | np.ndarray]

    @property
    def every(self) -> float | None:
        return self.inner.every

    def init(self) -> Any:
        return self.inner.init()

    def decide(self, state: State, events: Sequence[Event], memory: Any) -> tuple[Decision, Any]:
        decision, memory = self.inner.decide(state, events, memory)
        left, anew = state.cluster.gpus - sum(state.cluster.hosts[h].gpus for h in state.room.lost), set[int]()
        for job in self.order(state, memory):
            if state.jobs[job].workers <= left:
                anew.add(int(job))
                left -= state.jobs[job].workers
        assert decision.grants.keys() == anew
        assert all(decision.grants[job] is grant for job, grant in state.running.items() if job in anew)
        return decision, memory


@given(
    facts,
    outages,
    st.sampled_from(
        [Srtf(), Srtf(True), Tiresias((8.0, 30.0)), Tiresias((20.0,), by_entry=True), Tiresias((9.0,), starvation=2.0)]
    ),
)
@settings(max_examples=150, deadline=None)
def test_decisions_are_those_of_all_jobs_in_order(
    made: list[tuple[int, int, int]], lost: list[tuple[int, int, int]], policy: Srtf | Tiresias
) -> None:
    jobs = [Job(f"job{i}", float(a), g, Fixed(float(w))) for i, (a, g, w) in enumerate(made)]
    compared = Compared(policy, policy.order if isinstance(policy, Tiresias) else shortest(policy))
    away = [Outage(host, float(begin), float(begin + length)) for host, begin, length in lost]
    outcome = replay(jobs, Cluster.uniform(3, 2), compared, Costs(restart=1.5, checkpoint_every=4.0), away)
    assert np.isfinite(outcome.completed).all()


@pytest.mark.parametrize("policy", [Srtf(), Tiresias((40.0, 400.0))])
def test_so_are_they_where_many_wait(policy: Srtf | Tiresias) -> None:
    draws, jobs = np.random.default_rng(0), list[Job]()
    for i in range(300):
        workers, seconds = int(draws.choice([1, 1, 2, 3, 8])), float(draws.integers(1, 200))
        jobs.append(Job(f"job{i}", float(draws.integers(0, 900)), workers, Fixed(seconds)))
    compared = Compared(policy, policy.order if isinstance(policy, Tiresias) else shortest(policy))
    outcome = replay(jobs, Cluster.uniform(4, 4), compared, Costs(restart=3.0))
    assert outcome.parts[0].max() > 1000 and outcome.restarts.sum() > 50

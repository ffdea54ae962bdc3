"""STS: a job of certain length has the cheapest configuration that is in time, others begin with few GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from laconic.cluster.decision import Decision
from laconic.cluster.energy.early_stopping import Configuration, EarlyStopping, cheapest
from laconic.cluster.energy.node_power import NodePower, energy_joules
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.outcome import Outcome
from laconic.cluster.policies.sts import Sts
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.room import ALMOST
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError

LATE = 2000.0  # joules of a second


def geometric(draws: np.random.Generator, longest: int, stop: float) -> EarlyStopping:
    work = min(int(draws.geometric(stop)), longest)
    alone, exponent = 1 / draws.uniform(30, 120), draws.uniform(0.55, 0.75)
    speeds = tuple(float(alone * gpus**exponent) for gpus in (1, 2, 3, 4))
    return EarlyStopping(float(work), tuple((1 - stop) ** k for k in range(longest)), speeds)


def choices_of(progress: EarlyStopping) -> tuple[Configuration, ...]:
    power = NodePower()
    return tuple(Configuration(g, 1 / s, power.of_job(g, 4) / s) for g, s in enumerate(progress.speeds, 1))


@pytest.mark.technique("sts", check=1)
@pytest.mark.parametrize("seed", range(5))
def test_a_certain_length_has_the_cheapest_constant_configuration_in_time(seed: int) -> None:
    draws = np.random.default_rng(seed)
    used = set()
    for _ in range(20):
        drawn = geometric(draws, int(draws.integers(1, 40)), 0.1)
        certain = replace(drawn, survival=(1.0,) * len(drawn.survival))
        choices, epochs = choices_of(certain), len(certain.survival)
        due = epochs / certain.speeds[-1] * float(draws.uniform(1.0, 4.0))
        plan = cheapest(certain.ahead(0.0), choices, due, LATE)
        in_time = [one for one in choices if epochs * one.seconds <= due]
        assert set(plan.gpus) == {min(in_time, key=lambda one: one.cost).gpus}
        assert plan.seconds <= due and plan.until == float("inf")
        used.add(plan.gpus[0])
    assert len(used) > 2


@pytest.mark.technique("sts", check=1)
@pytest.mark.parametrize("seed", range(5))
def test_the_worst_case_is_in_time_and_the_plan_is_near_the_best_of_all(seed: int) -> None:
    draws = np.random.default_rng(seed)
    changing = 0
    for _ in range(10):
        progress = geometric(draws, int(draws.integers(2, 6)), float(draws.uniform(0.05, 0.4)))
        choices, done = choices_of(progress), float(draws.uniform(0, 1))
        pieces = progress.ahead(done)
        assert sum(length for length, _ in pieces) == pytest.approx(len(progress.survival) - done)
        due = (len(progress.survival) - done) / progress.speeds[-1] * float(draws.uniform(1.0, 3.0))
        plan = cheapest(pieces, choices, due, LATE)
        assert plan.seconds <= due * (1 + 1e-9)
        best = min(
            sum(length * chance * one.cost for (length, chance), one in zip(pieces, which, strict=True))
            for which in itertools.product(choices, repeat=len(pieces))
            if sum(length * one.seconds for (length, _), one in zip(pieces, which, strict=True)) <= due * (1 + 1e-12)
        )
        assert best * (1 - 1e-9) <= plan.expected <= 1.1 * best
        assert plan.gpus[0] <= plan.gpus[-1]
        changing += len(set(plan.gpus)) > 1
    assert changing


@pytest.mark.technique("sts", check=1)
@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_does_not_end_early_is_in_time(seed: int) -> None:
    draws = np.random.default_rng(seed)
    progress = geometric(draws, 30, 0.08)
    progress = replace(progress, work=30.0)
    due = 30 / progress.speeds[-1] * float(draws.uniform(1.02, 2.0))
    jobs = [Job("job", 0.0, 1, progress, least=1, most=4, deadline=due, weight=LATE)]
    outcome = replay(jobs, Cluster.uniform(1, 4), Sts(), keep_log=True)
    assert outcome.completed[0] <= due * (1 + 1e-6)
    numbers = [len(grant.slots) for entry in outcome.log for _, grant in (*entry.changes.start, *entry.changes.resize)]
    assert numbers == sorted(numbers) and len(numbers) > 1


@dataclass(frozen=True)
class EarliestDue(Policy):
    """Whoever is due first has the fastest configuration that a host has free."""

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        room, grants = state.room.copy(), dict[int, Grant]()
        for job, held in state.running.items():
            room.give(state.jobs[job], held)
        for job in sorted(state.active, key=lambda job: (state.jobs[job].deadline, job)):
            gpus = min(int(room.whole.max()), state.jobs[job].most)
            mine = state.running.get(job)
            if mine is not None and len(mine.slots) >= gpus and all(room.free[s[:2]] >= ALMOST for s in mine.slots):
                grants[job] = mine
            elif gpus:
                host = int(np.where(room.whole >= gpus, room.whole, 99).argmin())
                free = np.flatnonzero(room.free[host] >= ALMOST)[:gpus].tolist()
                grants[job] = Grant.of(Slot(host, device) for device in free)
            else:
                continue
            room.take(state.jobs[job], grants[job])
        return Decision(grants), None


def arriving(seed: int, count: int = 200) -> list[Job]:
    draws, found, now = np.random.default_rng(seed), [], 0.0
    for i in range(count):
        progress = geometric(draws, int(draws.integers(20, 60)), float(draws.uniform(0.03, 0.12)))
        due = now + len(progress.survival) / progress.speeds[-1] * float(draws.uniform(1.1, 3.0))
        found.append(Job(f"job{i}", now, 1, progress, least=1, most=4, deadline=due, weight=LATE))
        now += float(draws.exponential(60.0))
    return found


def cost(outcome: Outcome, cluster: Cluster) -> float:
    late = np.maximum(outcome.completed - np.array([job.deadline for job in outcome.jobs]), 0.0)
    return energy_joules(outcome, cluster, NodePower()) + LATE * float(late.sum())


@pytest.mark.technique("sts", check=2)
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_energy_and_tardiness_are_below_earliest_due_and_the_worst_case_planner(seed: int) -> None:
    """15 % are asked of the distance to earliest due first, which is 25 to 27 % here, and no job is late; the paper has
    32 to 80 %. The planner that takes the longest case for certain is to cost more than STS: STS is 5 to 9 % below."""
    jobs, cluster = arriving(seed), Cluster.uniform(10, 4)
    certain = [
        replace(job, progress=replace(job.progress, survival=(1.0,) * len(job.progress.survival)))  # type: ignore
        for job in jobs
    ]
    ours, worst, fastest = (
        cost(replay(who, cluster, policy, keep_log=True), cluster)
        for who, policy in ((jobs, Sts()), (certain, Sts()), (jobs, EarliestDue()))
    )
    assert ours < 0.85 * fastest
    assert ours < 0.97 * worst


def test_the_energy_of_a_host_by_hand() -> None:
    jobs = [
        Job("one", 0.0, 1, EarlyStopping(1.0, (1.0,), (0.1,))),
        Job("two", 5.0, 1, EarlyStopping(2.0, (1.0, 1.0), (0.1,))),
    ]
    outcome = replay([replace(job, deadline=100.0) for job in jobs], Cluster.uniform(2, 2), Sts(), keep_log=True)
    assert outcome.completed.tolist() == [10.0, 25.0]
    # both on one host, which is on for 25 s; the GPUs are busy for 10 and 20 s
    assert energy_joules(outcome, Cluster.uniform(2, 2), NodePower(100.0, 10.0)) == pytest.approx(2500 + 300)


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ClusterError, match="falls from 1"):
        EarlyStopping(2.0, (1.0, 0.5, 0.6), (1.0,))
    with pytest.raises(ClusterError, match="ends within its epochs"):
        EarlyStopping(3.0, (1.0, 0.5), (1.0,))

"""Hydra: the best of all plans, shortest job first where nothing else counts, and less tardiness."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.cluster.by_type import ByType
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Fixed, Job
from laconic.cluster.policies.hydra import Hydra, Task, best_plan
from laconic.cluster.policy import Policy
from laconic.cluster.replay import replay
from laconic.cluster.state import Event, State
from tests.data import folder_of


def cost(
    tasks: list[Task], free: list[list[float]], price: float, order: tuple[int, ...], kinds: tuple[int, ...]
) -> float:
    """What it costs to take the tasks in an order, each on the first free GPU of its type."""
    times, total = [sorted(row) for row in free], 0.0
    for task, kind in zip(order, kinds, strict=True):
        end = times[kind][0] + tasks[task].seconds[kind]
        times[kind] = sorted([end, *times[kind][1:]])
        total += end - tasks[task].arrival + price * max(end - tasks[task].deadline, 0.0)
    return total


@pytest.mark.technique("hydra", check=1)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=5
    ),
    st.tuples(st.integers(5, 15), st.integers(5, 15), st.integers(5, 15)),
    st.sampled_from([0.0, 1.0, 7.5]),
)
@settings(max_examples=40, deadline=None)
def test_a_plan_costs_as_little_as_any(
    facts: list[tuple[int, int, int, int]], busy: tuple[int, int, int], price: float
) -> None:
    tasks = [Task(float(a), float(d), (float(s), float(t))) for a, d, s, t in facts]
    check_plan(tasks, [[float(busy[0]), float(busy[1])], [float(busy[2])]], price)


def check_plan(tasks: list[Task], free: list[list[float]], price: float) -> None:
    plan = best_plan(tasks, free, 5.0, price)
    orders = itertools.permutations(range(len(tasks)))
    best = min(
        cost(tasks, free, price, order, kinds)
        for order in orders
        for kinds in itertools.product((0, 1), repeat=len(tasks))
    )
    assert plan.cost == pytest.approx(best)
    order, kinds = zip(*plan.steps, strict=True)
    assert sorted(order) == list(range(len(tasks)))
    assert cost(tasks, free, price, order, kinds) == pytest.approx(plan.cost)


@pytest.mark.long
@pytest.mark.technique("hydra", check=1)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_plan_of_seven_jobs_costs_as_little_as_any(seed: int) -> None:
    draws = np.random.default_rng(seed)
    tasks = [Task(0.0, float(draws.uniform(5, 40)), tuple(draws.uniform(1, 12, 2).tolist())) for _ in range(7)]
    check_plan(tasks, [[5.0, 9.0], [5.0]], 3.0)


@pytest.mark.technique("hydra", check=1)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8, unique=True))
@settings(max_examples=60, deadline=None)
def test_without_deadlines_one_gpu_takes_the_shortest_first(works: list[int]) -> None:
    jobs = [Job(f"job{i}", 0.0, 1, Fixed(float(work))) for i, work in enumerate(works)]
    outcome = replay(jobs, Cluster.uniform(1, 1), Hydra())
    assert np.argsort(outcome.first_start).tolist() == np.argsort(works).tolist()


SECONDS_BETWEEN = 600.0


@dataclass(frozen=True)
class OnFastest(Policy):
    """Jobs by their deadlines, or the shortest first, each on the fastest GPU that is idle; nothing is preempted."""

    by_deadline: bool = False

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        room, start = state.room.copy(), dict[int, Grant]()

        def seconds(job: int, host: int) -> float:
            progress = state.jobs[job].progress
            return progress.work / progress.rate(0.0, Grant((Slot(host, 0),)), state.cluster, ()).speed

        def key(job: int) -> tuple[float, int]:
            best = min(seconds(job, host) for host in range(len(state.cluster.hosts)))
            return (state.jobs[job].deadline if self.by_deadline else best), job

        for job in sorted(state.waiting, key=key)[: room.gpus]:
            host = min(np.flatnonzero(room.whole).tolist(), key=lambda host: (seconds(job, host), host))
            start[job] = Grant((Slot(host, int(room.free[host].argmax())),))
            room.take(state.jobs[job], start[job])
        return Decision.changing(state.running, start), None


def jobs_with_deadlines(seed: int, count: int = 200) -> list[Job]:
    """Jobs of one GPU of Gavel's models, of 10 minutes to 4 hours on their best type, with deadlines within 1.5 to 6
    times that, on 4 GPUs of each of three types, one every 10 minutes in the mean."""
    table = json.loads((folder_of("gavel") / "simulation_throughputs.json").read_text())
    kinds = sorted(kind for kind in table["v100"] if kind.endswith(", 1)"))
    draws, found = np.random.default_rng(seed), list[Job]()
    for i in range(count):
        kind = kinds[int(draws.integers(len(kinds)))]
        speeds = tuple((gpu, float(table[gpu][kind]["null"])) for gpu in ("k80", "p100", "v100"))
        seconds = float(np.exp(draws.uniform(math.log(600), math.log(4 * 3600))))
        work = seconds * max(speed for _, speed in speeds)
        deadline = float(seconds * draws.uniform(1.5, 6))
        found.append(Job(f"job{i}", 0.0, 1, ByType(work, dict(speeds)), deadline=deadline))
    times = np.cumsum(draws.exponential(SECONDS_BETWEEN, count))
    return [
        replace(job, arrival=float(t), deadline=float(t + job.deadline)) for job, t in zip(found, times, strict=True)
    ]


@pytest.mark.long
@pytest.mark.technique("hydra", check=2)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_total_tardiness_is_halved_at_nearly_the_same_completion_times(seed: int) -> None:
    jobs = jobs_with_deadlines(seed)
    cluster = Cluster(tuple(Host(f"{gpu}{i}", 2, gpu) for gpu in ("k80", "p100", "v100") for i in range(2)))

    def tried(policy: Policy) -> tuple[float, float]:
        outcome = replay(jobs, cluster, policy)
        late = np.maximum(outcome.completed - [job.deadline for job in outcome.jobs], 0.0)
        return float(late.sum()), float(outcome.completion_times.sum())

    (late, took), (by_deadline, _), (shortest, least) = tried(Hydra()), tried(OnFastest(True)), tried(OnFastest())
    assert late <= 0.5 * by_deadline and late <= 0.5 * shortest
    assert took <= 1.15 * least

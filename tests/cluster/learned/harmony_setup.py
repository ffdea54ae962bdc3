"""Jobs that disturb each other as pairs did which Lucid's authors measured, and placements to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.contention import OnHosts, Running
from laconic.cluster.coupled import Coupled
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.learned.task_placement import Batch, Task
from laconic.cluster.outcome import Outcome
from laconic.cluster.policy import Policy
from laconic.cluster.readers.lucid import read_lucid
from laconic.cluster.replay import replay
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from tests.data import folder_of

KINDS = (
    "DCGAN-LSUN-128-0",
    "MobileNetV2-CIFAR-10-128-0",
    "ResNet18-CIFAR-10-64-0",
    "PPO-LunarLander-64-0",
    "PointNet-ShapeNet-32-0",
)
MESSAGES, USUAL = 0.1, 600.0
CLUSTER = Cluster.uniform(3, 4)


@cache
def slowdowns() -> dict[str, dict[str, float]]:
    """What one job of each kind adds to the time of another, as the measured speeds of pairs have it."""
    found: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for measured in read_lucid(folder_of("lucid") / "colocate_info.csv"):
        pair = measured.pair
        for one, other, speed in ((pair.first, pair.second, pair.first_speed), (pair.second, pair.first, pair.second_speed)):  # fmt: skip  # noqa: E501
            if one in found and other in found:
                found[one][other] = max(1 / speed - 1, 0.0)
    return found


def job(name: str, arrival: float, kind: int, workers: int, work: float) -> Job:
    return Job(name, arrival, workers, Coupled(work, MESSAGES, slowdowns=slowdowns()[KINDS[kind]]), kind=KINDS[kind])


def drawn_tasks(draws: np.random.Generator, count: int) -> list[Task]:
    return [
        Task(int(draws.integers(len(KINDS))), int(draws.integers(1, 4)), float(draws.lognormal(0.0, 0.5)))
        for _ in range(count)
    ]


def drawn(draws: np.random.Generator) -> Batch:
    """Up to four jobs that are to be placed beside up to three that run."""
    free, running = np.full(3, 4), []
    for task in drawn_tasks(draws, int(draws.integers(0, 4))):
        row = np.zeros(3, dtype=np.int64)
        for _ in range(task.workers):
            host = int(draws.choice(np.flatnonzero(free > 0)))
            row[host] += 1
            free[host] -= 1
        running.append((task, row))
    return Batch(len(KINDS), free, running, drawn_tasks(draws, int(draws.integers(1, 5))))


def measured(batch: Batch) -> NDArray[np.float64]:
    """The speeds of a placement as they are."""
    used, there = np.zeros(3, dtype=np.int64), []
    for number, (task, row) in enumerate(batch.everywhere):
        slots = []
        for host, count in enumerate(row.tolist()):
            slots += [Slot(host, int(used[host]) + k) for k in range(count)]
            used[host] += count
        there.append(Running(job(f"job{number}", 0.0, task.kind, task.workers, 1.0), Grant(tuple(slots)), 0.0))
    return np.array([rate.speed for rate in OnHosts().rates(there, CLUSTER)])


def batches(seed: int, count: int, jobs: int = 4) -> list[list[Job]]:
    """Instances of jobs that come together and fit."""
    draws, found = np.random.default_rng(seed), list[list[Job]]()
    while len(found) < count:
        tasks = drawn_tasks(draws, jobs)
        if sum(task.workers for task in tasks) <= CLUSTER.gpus:
            found.append([job(f"job{i}", 0.0, t.kind, t.workers, USUAL * t.work) for i, t in enumerate(tasks)])
    return found


def run(jobs: Sequence[Job], policy: Policy) -> Outcome:
    return replay(jobs, CLUSTER, policy, contention=OnHosts())


def _on(room: Room, counts: Sequence[int]) -> Grant:
    return Grant.of(
        Slot(host, device)
        for host, count in enumerate(counts)
        for device in np.flatnonzero(room.free[host] >= ALMOST)[:count].tolist()
    )


@dataclass(frozen=True)
class Balanced(Policy):
    """Each worker goes to the host with the most GPUs free."""

    together: bool = False

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        room, start = state.room.copy(), dict[int, Grant]()
        for number in state.waiting:
            workers, counts = state.jobs[number].workers, [0] * len(state.cluster.hosts)
            if workers > room.gpus:
                break
            free = room.whole.copy()
            for _ in range(workers):
                least = int(free.argmax())
                if self.together and any(counts) and free[int(np.argmax(counts))] > 0:
                    least = int(np.argmax(counts))
                counts[least] += 1
                free[least] -= 1
            start[number] = _on(room, counts)
            room.take(state.jobs[number], start[number])
        return Decision.changing(state.running, start), None


@dataclass(frozen=True)
class Given(Policy):
    """All jobs start at once where somebody says."""

    counts: tuple[tuple[int, ...], ...] = ()

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        room, start = state.room.copy(), dict[int, Grant]()
        for number in state.waiting:
            start[number] = _on(room, self.counts[number])
            room.take(state.jobs[number], start[number])
        return Decision.changing(state.running, start), None


def best_of_all(jobs: Sequence[Job]) -> float:
    """The least mean completion time of all placements at once."""
    spreads = {
        workers: [row for row in itertools.product(range(5), repeat=3) if sum(row) == workers] for workers in (1, 2, 3)
    }
    found = float("inf")
    for counts in itertools.product(*(spreads[one.workers] for one in jobs)):
        if all(sum(column) <= 4 for column in zip(*counts, strict=True)):
            found = min(found, run(jobs, Given(counts)).mean_completion_time)
    return found

"""The placement of a batch of jobs as a sequence of actions: one worker to one host, or done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.learned.scorer import Scorer, Step
from laconic.errors import ClusterError

EXTRA = 7


class Task(NamedTuple):
    """A job of a batch, or one that runs.

    - `kind`: the number of what it trains.
    - `workers`: of its gang.
    - `work`: how much it has to do, as a share of what is usual.
    """

    kind: int
    workers: int
    work: float = 1.0


def features_of(kinds: int) -> int:
    """Return how many numbers describe an action.

    - `kinds`: of jobs.
    """
    return kinds * kinds + EXTRA


@dataclass
class Batch:
    """Jobs that are being placed on hosts beside those that run. Workers of one job follow each other; a job that was
    begun is finished before the next, and only a job that fits as a whole is begun.

    - `kinds`: how many kinds of jobs there are.
    - `free`: the free GPUs of each host.
    - `running`: jobs that run, with the workers of each on every host.
    - `jobs`: those to place.
    """

    kinds: int
    free: NDArray[np.int64]
    running: Sequence[tuple[Task, NDArray[np.int64]]]
    jobs: Sequence[Task]
    placed: NDArray[np.int64] = field(init=False)  # workers of each job on each host

    def __post_init__(self) -> None:
        self.free = np.array(self.free, dtype=np.int64)
        self.placed = np.zeros((len(self.jobs), len(self.free)), dtype=np.int64)
        if any(not 0 <= task.kind < self.kinds for task in self.jobs):
            raise ClusterError(f"the network knows {self.kinds} kinds of jobs, and there is another")

    @property
    def begun(self) -> int | None:
        """The job that has some of its workers, and not all."""
        for number, (task, row) in enumerate(zip(self.jobs, self.placed, strict=True)):
            if 0 < row.sum() < task.workers:
                return number
        return None

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which actions can be taken: a worker of job k on host s is the action k * hosts + s, and the last is done."""
        hosts, begun = len(self.free), self.begun
        found = np.zeros(len(self.jobs) * hosts + 1, dtype=bool)
        for number, (task, row) in enumerate(zip(self.jobs, self.placed, strict=True)):
            if number == begun or (begun is None and not row.any() and task.workers <= self.free.sum()):
                found[number * hosts : (number + 1) * hosts] = self.free > 0
        nothing_runs = not len(self.running) and not self.placed.any()
        found[-1] = begun is None and not (nothing_runs and found.any())
        return found

    @property
    def actions(self) -> NDArray[np.float64]:
        """The features of every action: which kinds it would meet, where its own workers are, and what is free."""
        hosts, kinds = len(self.free), self.kinds
        there = self.neighbours
        rows = np.zeros((len(self.jobs) * hosts + 1, features_of(kinds)))
        for number, (task, own) in enumerate(zip(self.jobs, self.placed, strict=True)):
            left, whole = task.workers - int(own.sum()), task.workers
            for host in range(hosts):
                row = rows[number * hosts + host]
                met = there[host].copy()
                met[task.kind] -= own[host] > 0
                row[task.kind * kinds : (task.kind + 1) * kinds] = met
                fits = float(self.free[host] >= left)
                apart = float(own.any() and not own[host])
                row[-EXTRA:] = fits, apart, own[host] / whole, left / whole, self.free[host] / 8, task.work, 0.0
        rows[-1, -1] = 1.0
        return rows

    @property
    def neighbours(self) -> NDArray[np.float64]:
        """How many jobs of each kind have workers on each host."""
        found = np.zeros((len(self.free), self.kinds))
        for task, row in self.everywhere:
            found[row > 0, task.kind] += 1
        return found

    @property
    def everywhere(self) -> list[tuple[Task, NDArray[np.int64]]]:
        """All jobs that have workers, with how many of them are on each host."""
        whole = [(task, row) for task, row in zip(self.jobs, self.placed, strict=True) if row.any()]
        return [*self.running, *whole]

    def take(self, action: int) -> bool:
        """Take an action, and return whether it was the last.

        - `action`: its number.
        """
        if not self.mask[action]:
            raise ClusterError("the action is masked: a host is full, or a job cannot be placed as a whole")
        if action == len(self.jobs) * len(self.free):
            return True
        job, host = divmod(action, len(self.free))
        self.placed[job, host] += 1
        self.free[host] -= 1
        return False

    def speed_features(self) -> NDArray[np.float64]:
        """Return what the speed of each job that has workers depends on: its kind, those it meets, and its hosts."""
        there = self.neighbours
        rows = []
        for task, row in self.everywhere:
            met = there[row > 0].sum(axis=0)
            met[task.kind] -= (row > 0).sum()
            pairs = np.zeros((self.kinds, self.kinds))
            pairs[task.kind] = met
            alone = np.zeros(self.kinds)
            alone[task.kind] = (row > 0).sum() - 1
            rows.append(np.concatenate([pairs.ravel(), alone, [1.0]]))
        return np.array(rows).reshape(-1, self.kinds * self.kinds + self.kinds + 1)

    def state(self) -> NDArray[np.float64]:
        """Return what the value of the whole batch depends on: by kind, how many jobs there are and how much a second
        of theirs counts, of the batch and of those that run; the GPUs that are free and asked for."""
        found = np.zeros((2, 2, self.kinds))
        for place, tasks in enumerate((self.jobs, [task for task, _ in self.running])):
            for task in tasks:
                found[place, :, task.kind] += 1.0, 1 / task.work
        workers = sum(task.workers for task in self.jobs)
        return np.array([*found.ravel(), self.free.sum() / 8, workers / 8, 1.0])


def placed_by(
    batch: Batch, scorer: Scorer, draws: np.random.Generator | None = None, together: float = 0.0
) -> list[Step]:
    """Place a batch by the scores of actions until it is done, and return the actions with those that there were.

    - `batch`: the jobs, which are placed.
    - `scorer`: the network.
    - `draws`: where actions are drawn, to explore.
    - `together`: how often a job that is begun has all of its workers put on one host that holds them, where there is
      one: exploration that knows what a job is.
    """
    steps: list[Step] = []
    hosts, target = len(batch.free), -1
    while True:
        actions, mask = batch.actions, batch.mask
        action = scorer.choose(actions, mask, draws)
        job, _ = divmod(action, hosts)
        if batch.begun is None:
            target = -1
            if draws is not None and job < len(batch.jobs) and draws.random() < together:
                holding = np.flatnonzero(batch.free >= batch.jobs[job].workers)
                target = int(draws.choice(holding)) if len(holding) else -1
        if target >= 0 and job < len(batch.jobs):
            action = job * hosts + target
        steps.append(Step(actions, mask, action))
        if batch.take(action):
            return steps

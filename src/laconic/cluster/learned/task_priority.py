"""The priority of a task: one model partition of a job, for one mini-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Weights:
    """How parts of a priority count; the defaults are the paper's.

    - `learning`: the part of what the task does for the loss, against that of its times.
    - `children`: how much of the priority of those that wait for a task is added to its own.
    - `deadline`, `remaining`, `waiting`: of the times.
    """

    learning: float = 0.3
    children: float = 0.8
    deadline: float = 0.3
    remaining: float = 0.3
    waiting: float = 0.35


@dataclass(frozen=True)
class Task:
    """A task of a job's graph. Times are in one unit.

    - `size`: of its model partition.
    - `left`: until its deadline.
    - `remaining`: that it still takes.
    - `waiting`: for which it has waited.
    - `children`: the numbers of the tasks that wait for it.
    - `is_server`: whether it is a parameter server, which comes first.
    """

    size: float
    left: float
    remaining: float
    waiting: float
    children: tuple[int, ...] = ()
    is_server: bool = False


def learning(urgency: float, drops: Sequence[float], share: float) -> float:
    """Return what a task does for its job's loss: early iterations and those after a large drop count most.

    - `urgency`: of the job.
    - `drops`: by how much the loss fell in each iteration so far; the next one is then known.
    - `share`: of the model that the task has.
    """
    latest = drops[-1] / sum(drops) if drops and sum(drops) > 0 else 1.0
    return urgency / (len(drops) + 1) * latest * share


def times(left: float, remaining: float, waiting: float, weights: Weights, least: float = 1 / 1440) -> float:
    """Return how pressing a task is by its times. A deadline that has passed presses no more.

    - `left`, `remaining`, `waiting`: in one unit.
    - `weights`: of each.
    - `least`: the time below which the first two count no less, so that nothing is infinitely pressing: a minute, where
      the unit is a day.
    """
    due = weights.deadline / max(left, least) if left > 0 else 0.0
    return due + weights.remaining / max(remaining, least) + weights.waiting * waiting


def priorities(
    tasks: Sequence[Task], urgency: float, drops: Sequence[float], weights: Weights | None = None
) -> list[float]:
    """Return the priority of each task of a job: of its own, and a part of the sum of its children's.

    - `tasks`: the graph, without circles.
    - `urgency`: of the job.
    - `drops`: by how much its loss fell in each iteration so far.
    - `weights`: of the parts.
    """
    w = weights or Weights()
    whole = sum(task.size for task in tasks)
    known: dict[int, float] = {}

    def of(number: int) -> float:
        if number not in known:
            task = tasks[number]
            own = w.learning * learning(urgency, drops, task.size / whole)
            own += (1 - w.learning) * times(task.left, task.remaining, task.waiting, w)
            known[number] = own + w.children * sum(of(child) for child in task.children)
        return known[number]

    return [math.inf if task.is_server else of(number) for number, task in enumerate(tasks)]

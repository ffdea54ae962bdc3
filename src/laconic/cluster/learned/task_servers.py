"""Which server a task goes to, and which tasks leave one that is overloaded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laconic.errors import ClusterError


def nearest(loads: np.ndarray, traffic: np.ndarray, moves: np.ndarray, limit: float = 0.9) -> int | None:
    """Return the server that is nearest to an ideal one, the first of equals: one on which every resource is used
    least, with which the task exchanges most, and to which it need not move. None where all are overloaded.

    - `loads`: the share of each resource that is used, a row a server.
    - `traffic`: what the task exchanges with those on each server, as a share of all that it exchanges.
    - `moves`: the penalty of moving to each, from 0 to 1.
    - `limit`: the use of a resource from which on a server is overloaded.
    """
    open_ = np.flatnonzero((loads < limit).all(axis=1))
    if not open_.size:
        return None
    seen = np.column_stack([loads[open_], traffic[open_], moves[open_]])
    ideal = np.concatenate([loads[open_].min(axis=0), [traffic[open_].max(), 0.0]])
    return int(open_[np.linalg.norm(seen - ideal, axis=1).argmin()])


@dataclass
class Placed:
    """Tasks on servers.

    - `demands`: the share of a server's resources that each task uses, a row a task.
    - `servers`: where each is; -1: it is queued.
    - `priorities`: of each.
    - `traffic`: what each pair of tasks exchanges.
    - `count`: servers.
    """

    demands: np.ndarray
    servers: np.ndarray
    priorities: np.ndarray
    traffic: np.ndarray
    count: int

    def __post_init__(self) -> None:
        tasks = len(self.demands)
        if self.traffic.shape != (tasks, tasks) or len(self.servers) != tasks or len(self.priorities) != tasks:
            raise ClusterError("tasks on servers have a place and a priority each, and a table of what pairs exchange")

    @property
    def loads(self) -> np.ndarray:
        """The use of every server's resources."""
        found = np.zeros((self.count, self.demands.shape[1]))
        there = self.servers >= 0
        np.add.at(found, self.servers[there], self.demands[there])
        return found


def relieve(placed: Placed, limit: float = 0.9, lowest: float = 0.1) -> list[int]:
    """Let tasks leave overloaded servers until none is, or nobody is left who may go, and place them anew; return who
    left. Only the tasks of lowest priority of a server may go, at least one. The victim is the one nearest to an ideal
    one, which uses most of what is overloaded, least of the rest, and exchanges nothing with those that stay. Victims
    are placed as queued tasks are, the most urgent first, where they overload nothing; others stay queued.

    - `placed`: the tasks, whose places change.
    - `limit`: the use of a resource from which on a server is overloaded.
    - `lowest`: the share of a server's tasks that may go.
    """
    left: list[int] = []
    for server in range(placed.count):
        there = np.flatnonzero(placed.servers == server)
        order = there[np.lexsort((there, placed.priorities[there]))]
        eligible = order[: math.ceil(lowest * len(there))].tolist()
        while eligible and (over := placed.loads[server] >= limit).any():
            stay = np.flatnonzero(placed.servers == server)
            use = placed.demands[eligible]
            exchanged = placed.traffic[np.ix_(eligible, stay)].sum(axis=1)
            ideal = np.where(over, use.max(axis=0), use.min(axis=0))
            away = np.linalg.norm(np.column_stack([use - ideal, exchanged]), axis=1)
            victim = eligible.pop(int(away.argmin()))
            placed.servers[victim] = -1
            left.append(victim)
    for task in sorted(left, key=lambda task: (-placed.priorities[task], task)):
        after = placed.loads + placed.demands[task]
        exchanged = np.array([placed.traffic[task, placed.servers == s].sum() for s in range(placed.count)])
        whole = max(float(placed.traffic[task].sum()), 1e-12)
        place = nearest(after, exchanged / whole, np.zeros(placed.count), limit)
        placed.servers[task] = -1 if place is None else place
    return left

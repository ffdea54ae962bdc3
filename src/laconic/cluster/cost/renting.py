"""Which machines to rent for jobs with deadlines, by a mixed-integer program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class MachineType(NamedTuple):
    """What a node can be rented as: GPUs of a kind, and the price of a second."""

    name: str
    gpus: int
    price: float


class DueJob(NamedTuple):
    """A job that can run on some GPUs of one node.

    - `seconds`: what it still takes on 1, 2, ... GPUs of each type.
    - `deadline`: from now, in seconds.
    - `weight`: the price of a second of tardiness.
    """

    seconds: tuple[tuple[float, ...], ...]
    deadline: float
    weight: float

    def cost(self, end: float) -> float:
        """Return the price of the tardiness of an end."""
        return self.weight * max(end - self.deadline, 0.0)


class Rented(NamedTuple):
    """What is to be done until the next decision.

    - `cost`: rent until the first job of each node ends, and tardiness.
    - `types`: the type of each node, None where it is not rented.
    - `placed`: the node and the GPUs of each job, None where it waits.
    """

    cost: float
    types: tuple[int | None, ...]
    placed: tuple[tuple[int, int] | None, ...]


def postponed(job: DueJob, wait: float, penalty: float) -> float:
    """Return what it costs that a job waits: the tardiness that it would have if it began later where it is slowest,
    times a penalty.

    - `job`: the job.
    - `wait`: after how many seconds it would begin.
    - `penalty`: by how much its tardiness counts more than that of a job that runs.
    """
    return penalty * job.cost(wait + max(max(row) for row in job.seconds))


def rent(
    jobs: Sequence[DueJob], types: Sequence[MachineType], nodes: int, wait: float, penalty: float, gap: float = 0.0
) -> Rented:
    """Return what each node is rented as, and which jobs run on how many GPUs of which node, at least cost: rent until
    the first job of each node ends, which is when one decides again, the tardiness of jobs that run, and that
    which jobs that wait would have. All nodes are alike.

    - `jobs`: those that wait or run.
    - `types`: what a node can be rented as.
    - `nodes`: how many there are.
    - `wait`: after how many seconds a job that is postponed is taken to begin.
    - `penalty`: by how much the tardiness of postponed jobs counts more.
    - `gap`: by what part of it the cost may be above the least.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import lil_array

    # variables: node n is type v; job j has g GPUs of node n as type v; and of those, the one that ends first there
    runs = [
        (j, n, v, g)
        for j, job in enumerate(jobs)
        for n in range(nodes)
        for v, kind in enumerate(types)
        for g in range(1, min(kind.gpus, len(job.seconds[v])) + 1)
    ]
    rented, size = nodes * len(types), len(runs)
    value = np.zeros(rented + 2 * size)
    once, fits = lil_array((len(jobs), len(value))), lil_array((rented, len(value)))
    ends = lil_array((rented, len(value)))
    chosen = lil_array((size, len(value)))
    kinds = lil_array((nodes, len(value)))
    for n in range(nodes):
        for v, kind in enumerate(types):
            kinds[n, n * len(types) + v] = 1
            fits[n * len(types) + v, n * len(types) + v] = -kind.gpus
            ends[n * len(types) + v, n * len(types) + v] = -1
    for i, (j, n, v, g) in enumerate(runs):
        seconds = jobs[j].seconds[v][g - 1]
        value[rented + i] = jobs[j].cost(seconds) - postponed(jobs[j], wait, penalty)
        value[rented + size + i] = types[v].price * seconds
        once[j, rented + i] = 1
        fits[n * len(types) + v, rented + i] = g
        ends[n * len(types) + v, rented + size + i] = 1
        chosen[i, rented + size + i], chosen[i, rented + i] = 1, -1
    found = milp(
        value,
        constraints=[
            LinearConstraint(once.tocsr(), ub=1),
            LinearConstraint(kinds.tocsr(), ub=1),
            LinearConstraint(fits.tocsr(), ub=0),
            LinearConstraint(ends.tocsr(), lb=0, ub=0),
            LinearConstraint(chosen.tocsr(), ub=0),
        ],
        integrality=np.ones(len(value)),
        bounds=(0, 1),
        options={"mip_rel_gap": gap, "node_limit": 2000},
    )
    placed: list[tuple[int, int] | None] = [None] * len(jobs)
    kind_of: list[int | None] = [None] * nodes
    for (j, n, v, g), taken in zip(runs, found.x[rented : rented + size], strict=True):
        if taken > 0.5:
            placed[j], kind_of[n] = (n, g), v
    return Rented(cost_of(jobs, types, kind_of, placed, wait, penalty), tuple(kind_of), tuple(placed))


def cost_of(
    jobs: Sequence[DueJob],
    types: Sequence[MachineType],
    kinds: Sequence[int | None],
    placed: Sequence[tuple[int, int] | None],
    wait: float,
    penalty: float,
) -> float:
    """Return what the program counts of an answer.

    - `jobs`, `types`: as they were given.
    - `kinds`: the type of each node.
    - `placed`: the node and the GPUs of each job.
    - `wait`, `penalty`: of jobs that are postponed.
    """
    total, ends = 0.0, dict[int, float]()
    for job, where in zip(jobs, placed, strict=True):
        if where is None:
            total += postponed(job, wait, penalty)
            continue
        node, gpus = where
        kind = kinds[node]
        assert kind is not None
        seconds = job.seconds[kind][gpus - 1]
        total += job.cost(seconds)
        ends[node] = min(ends.get(node, math.inf), seconds)
    return total + sum(types[kind].price * ends[n] for n, kind in enumerate(kinds) if kind is not None)

"""Tasks that arrive one after the other and stay: how full a cluster becomes by a rule.

This is no replay of time: nobody leaves, and who finds no room goes away. It is how the authors of FGD measure packing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.hosts import Cluster
from laconic.cluster.packing.tables import HostTable, task_rows, typical_table
from laconic.cluster.packing.tasks import WHOLE, Task
from laconic.cluster.room import Room
from laconic.errors import ClusterError

RULES = ("exact", "published", "best_fit", "dot_product", "random")
"""The smallest increase of fragmentation, exactly or as the authors' simulator scores it; the host that has least left
of cores and GPUs; that with the smallest product of what it has and what is asked for; any host and GPU with room."""


@dataclass(frozen=True)
class Packed:
    """What became of tasks.

    - `host`: where each is, -1 where it found no room.
    - `gpus`: the GPUs that are taken.
    - `share`: the same as a share of all.
    """

    host: np.ndarray
    gpus: float
    share: float


def arrivals(tasks: Sequence[Task], gpus: float, seed: int) -> list[Task]:
    """Return all tasks in a random order, and after them tasks drawn from all with replacement, until those asked for
    so many GPUs: as the authors inflate a trace.

    - `tasks`: the trace's.
    - `gpus`: how many GPUs are asked for in the end; the last draw, which would exceed it, is left out.
    - `seed`: of the draws.
    """
    draw = np.random.default_rng(seed)
    found = [tasks[i] for i in draw.permutation(len(tasks))]
    asked = sum(task.gpus * task.gpu_milli for task in tasks)
    if not asked:
        raise ClusterError("none of the tasks asks for a GPU, so that they never ask for as many as wanted")
    while asked + (task := tasks[int(draw.integers(len(tasks)))]).gpu_milli <= gpus * WHOLE:
        found.append(task)
        asked += task.gpus * task.gpu_milli
    return found


def pack(cluster: Cluster, tasks: Sequence[Task], rule: str, counts: Mapping[Task, int], seed: int) -> Packed:
    """Place tasks one after the other for good, each on the best host that has room for it.

    - `cluster`: the hosts.
    - `tasks`: in the order in which they arrive.
    - `rule`: one of `RULES`.
    - `counts`: the tasks by which fragmentation is seen, with how often each came.
    - `seed`: of the order in which equally good hosts are taken, and of random choices.
    """
    from laconic.kernels import placement

    if rule not in RULES:
        raise ClusterError(f"there is no rule {rule!r}; the rules are {', '.join(RULES)}")
    draw = np.random.default_rng(seed)
    different = list(dict.fromkeys(tasks))
    number = {task: i for i, task in enumerate(different)}
    hosts = HostTable.of(Room(cluster))
    rank = draw.permutation(len(cluster.hosts))
    order = np.array([number[task] for task in tasks], np.int64)
    found = placement.pack(
        RULES.index(rule), tuple(hosts), rank, task_rows(different, cluster), order,
        typical_table(counts, cluster), draw.random((len(tasks), 2)),
    )  # fmt: skip
    taken = cluster.gpus - float(hosts.gpu_milli.sum()) / WHOLE
    return Packed(found, taken, taken / cluster.gpus)

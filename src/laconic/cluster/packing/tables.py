"""Hosts and tasks as the arrays of whole numbers that the compiled loops take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from laconic.cluster.hosts import Cluster
from laconic.cluster.packing.tasks import WHOLE, Task
from laconic.cluster.room import Room
from laconic.errors import ClusterError

_PLENTY = 2**40  # of cores or memory, where a host has no limit


class HostTable(NamedTuple):
    """What hosts have free; `kind` is one bit, that of their GPUs' type, and `free` is by host and device."""

    cpu_milli: np.ndarray
    memory_mib: np.ndarray
    kind: np.ndarray
    gpu_milli: np.ndarray

    @staticmethod
    def of(room: Room) -> HostTable:
        """Return what is free now, parts of GPUs rounded to thousandths.

        - `room`: what is free.
        """
        types = _types(room.cluster)
        kind = np.array([1 << types.index(host.gpu) for host in room.cluster.hosts], np.int64)
        cpu, memory = (np.minimum(amount, _PLENTY).astype(np.int64) for amount in (room.cpu_milli, room.memory_mib))
        return HostTable(cpu, memory, kind, np.rint(room.free * WHOLE).astype(np.int64))


def task_rows(tasks: Sequence[Task], cluster: Cluster) -> np.ndarray:
    """Return a row for each task: cores, memory, the bits of the types that it runs on, GPUs and thousandths of each.

    - `tasks`: what is asked for.
    - `cluster`: the hosts, whose types of GPU the bits stand for.
    """
    types = _types(cluster)
    rows = np.zeros((len(tasks), 5), np.int64)
    for row, task in zip(rows, tasks, strict=True):
        bits = sum(1 << types.index(gpu) for gpu in task.gpu_types if gpu in types)
        kinds = bits or (1 << 62 if task.gpu_types else 0)  # none of them is here
        row[:] = task.cpu_milli, task.memory_mib, kinds, task.gpus, task.gpu_milli
    return rows


def typical_table(counts: Mapping[Task, int], cluster: Cluster) -> tuple[np.ndarray, ...]:
    """Return columns of typical tasks and their counts.

    - `counts`: the tasks, with how often each came.
    - `cluster`: the hosts.
    """
    columns = np.ascontiguousarray(task_rows(list(counts), cluster).T)
    return (*columns, np.array(list(counts.values()), np.int64))


def _types(cluster: Cluster) -> list[str]:
    types = sorted({host.gpu for host in cluster.hosts})
    if len(types) > 60:
        raise ClusterError(f"the hosts have {len(types)} types of GPU; packing tells at most 60 apart")
    return types

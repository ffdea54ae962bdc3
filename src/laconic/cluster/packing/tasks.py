"""What a task asks of one host, and the tasks that are typical of what arrives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from laconic.cluster.job import Job
from laconic.errors import ClusterError

WHOLE = 1000
"""Thousandths of a GPU: the grain in which parts are counted."""

_ROUNDING = 1e-6  # of a thousandth


class Task(NamedTuple):
    """What a task asks of one host, in whole numbers.

    - `cpu_milli`: thousandths of a core.
    - `memory_mib`: memory.
    - `gpus`: how many GPUs; 0: none.
    - `gpu_milli`: thousandths of each of them; less than 1000 only where it asks for one.
    - `gpu_types`: the types that it runs on; none given: all.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    gpu_types: frozenset[str] = frozenset()

    @staticmethod
    def of(job: Job) -> Task:
        """Return what a job asks for, its parts of a GPU rounded up to thousandths.

        - `job`: the job, whose workers are all on one host.
        """
        cpu, memory = math.ceil(job.cpu_milli), math.ceil(job.memory_mib)
        return Task(cpu, memory, job.workers, math.ceil(job.share * WHOLE - _ROUNDING), job.gpu_types)


def typical(counts: Mapping[Task, int], share: float = 0.95) -> dict[Task, int]:
    """Return the most frequent tasks that make up a share of all, each with how often it came: what fragmentation is
    seen by. Of two that came as often the larger is first.

    - `counts`: how often each task came.
    - `share`: how much of all these make up at least.
    """
    if not 0 < share <= 1:
        raise ClusterError(f"typical tasks cannot make up {share:g} of all; give a share above 0 and at most 1")

    def key(item: tuple[Task, int]) -> tuple[object, ...]:
        task, count = item
        return count, task.cpu_milli, task.gpu_milli, task.gpus, task.memory_mib, sorted(task.gpu_types)

    wanted, found, covered = share * sum(counts.values()), dict[Task, int](), 0
    for task, count in sorted(counts.items(), key=key, reverse=True):
        if covered >= wanted:
            break
        found[task] = count
        covered += count
    return found

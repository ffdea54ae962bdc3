"""Handing out a cluster one unit at a time, each to the job that gains most by it for what the unit takes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Demand:
    """An elastic job.

    - `seconds`: how long it still takes with so many units of each kind, such as workers and parameter servers.
    - `needs`: what one unit of each kind takes of each resource.
    - `most`: the units of each kind that it can use.
    """

    seconds: Callable[[Counts], float]
    needs: Sequence[Sequence[float]]
    most: Counts


def by_marginal_gain(demands: Sequence[Demand], capacity: Sequence[float]) -> list[Counts]:
    """Return the units of each kind that each job gets. In their order jobs get one of each; then whoever saves most
    time with one more, over the largest share of a resource that it takes, gets it, until nothing fits or nobody gains.

    - `demands`: the jobs.
    - `capacity`: what there is of each resource.
    """
    have = list(map(float, capacity))
    given = [(0,) * len(demand.most) for demand in demands]
    versions = [0] * len(demands)
    heap: list[tuple[float, int, int, int]] = []

    def take(needs: Iterable[Sequence[float]]) -> bool:
        after = [left - sum(used) for left, used in zip(have, zip(*needs, strict=True), strict=True)]
        if min(after) < 0:
            return False
        have[:] = after
        return True

    def offer(job: int) -> None:
        """Note what a job would gain by one more of each kind."""
        versions[job] += 1
        counts, demand = given[job], demands[job]
        now = demand.seconds(counts)
        for kind, (most, need) in enumerate(zip(demand.most, demand.needs, strict=True)):
            if counts[kind] < most and all(used <= left for used, left in zip(need, have, strict=True)):
                share = max(used / whole for used, whole in zip(need, capacity, strict=True))
                gain = (now - demand.seconds(_more(counts, kind))) / share
                heapq.heappush(heap, (-gain, job, kind, versions[job]))

    for job, demand in enumerate(demands):
        if take(demand.needs):
            given[job] = (1,) * len(demand.most)
    for job, counts in enumerate(given):
        if any(counts):
            offer(job)
    while heap and heap[0][0] < 0:
        _, job, kind, version = heapq.heappop(heap)
        if version == versions[job] and take([demands[job].needs[kind]]):
            given[job] = _more(given[job], kind)
            offer(job)
    return given


def _more(counts: Counts, kind: int) -> Counts:
    return (*counts[:kind], counts[kind] + 1, *counts[kind + 1 :])

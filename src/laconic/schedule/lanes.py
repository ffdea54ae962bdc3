"""Tasks over lanes: what is served when.

A lane serves one task at a time, of those that are ready: in the order in which they became so, or the most urgent
first. A lane with a credit takes tasks over before they are served, so many bytes at a time, and serves what it has
taken as it came: what is more urgent waits for no more than that.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """Something that takes a lane for some time, after other tasks (by number) have ended."""

    lane: str
    seconds: float
    needs: tuple[int, ...] = ()
    urgency: float = 0.0  # the smaller the sooner
    nbytes: float = 0.0


@dataclass(frozen=True)
class Lane:
    """How a lane chooses among what is ready."""

    by_urgency: bool = False
    credit_bytes: float = 0.0  # taken over ahead of time, beside the one that is served


@dataclass(frozen=True)
class Times:
    """When each task began and ended."""

    starts: list[float]
    ends: list[float]


def serve(tasks: Sequence[Task], lanes: Mapping[str, Lane] | None = None) -> Times:
    """Every task, as early as its lane allows. Those that need each other never are: their times are infinite."""
    waiting = [len(task.needs) for task in tasks]
    after: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in task.needs:
            after[other].append(number)
    desks = {task.lane: _Desk((lanes or {}).get(task.lane, Lane())) for task in tasks}
    times = Times(*([math.inf] * len(tasks) for _ in range(2)))
    ends: list[tuple[float, int]] = []
    released = [number for number, count in enumerate(waiting) if count == 0]
    now = 0.0
    while True:
        for number in sorted(released):
            desks[tasks[number].lane].come(number, tasks[number])
        for desk in desks.values():
            if desk.served is None and (chosen := desk.next(tasks)) is not None:
                desk.served = chosen
                times.starts[chosen], times.ends[chosen] = now, now + tasks[chosen].seconds
                heapq.heappush(ends, (times.ends[chosen], chosen))
        if not ends:
            return times
        now, released = ends[0][0], []
        while ends and ends[0][0] == now:
            _, number = heapq.heappop(ends)
            desks[tasks[number].lane].served = None
            for follower in after[number]:
                waiting[follower] -= 1
                if waiting[follower] == 0:
                    released.append(follower)


class _Desk:
    """A lane at work: what waits, what was taken over, what is served."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.waits: list[tuple[float, int, int]] = []
        self.taken: deque[int] = deque()
        self.taken_bytes = 0.0
        self.served: int | None = None
        self._came = 0

    def come(self, number: int, task: Task) -> None:
        self._came += 1
        heapq.heappush(self.waits, (task.urgency if self.lane.by_urgency else 0.0, self._came, number))

    def next(self, tasks: Sequence[Task]) -> int | None:
        """Take over what the credit allows, and give the first of it."""
        while self.waits and (not self.taken or self.taken_bytes < self.lane.credit_bytes):
            number = heapq.heappop(self.waits)[2]
            self.taken.append(number)
            self.taken_bytes += tasks[number].nbytes
        if not self.taken:
            return None
        number = self.taken.popleft()
        self.taken_bytes -= tasks[number].nbytes
        return number

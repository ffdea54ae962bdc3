"""A list scheduler: tasks on lanes, each of which serves one task at a time.

A lane serves the tasks that are ready in the order in which they became so, or the most urgent first. A lane with a
credit admits so many bytes of tasks before they are served, and serves what it has admitted in that order: a more
urgent task waits for no more than the credit. A lane that fuses admits as much when it is free, and serves it as one
task. A task may take longer while the lane `compute` is busy than alone: it then progresses at two paces.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COMPUTE = "compute"
"""The name of the lane on which workers compute."""


class Task(NamedTuple):
    """Work that occupies a lane for some time, after other tasks (by number) have ended."""

    lane: str
    seconds: float
    needs: tuple[int, ...] = ()
    urgency: float = 0.0  # the smaller the sooner
    nbytes: float = 0.0
    overlapped_seconds: float | None = None  # the time it takes while the lane `compute` is busy; None: `seconds`


@dataclass(frozen=True)
class Lane:
    """How a lane chooses among the tasks that are ready."""

    by_urgency: bool = False
    credit_bytes: float = 0.0  # bytes admitted ahead of time, besides the task that is served
    fuses: float | None = None  # the start-up seconds of all admitted tasks served as one; None: one by one


@dataclass(frozen=True)
class Times:
    """The times at which each task began and ended."""

    starts: list[float]
    ends: list[float]


def serve(tasks: Sequence[Task], lanes: Mapping[str, Lane] | None = None) -> Times:
    """Return when each task is served, as early as its lane allows; tasks that need each other have infinite times."""
    waiting = [len(task.needs) for task in tasks]
    after: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in task.needs:
            after[other].append(number)
    names = sorted({task.lane for task in tasks}, key=lambda name: name != COMPUTE)  # computing is first
    states = {name: _LaneState((lanes or {}).get(name, Lane()), index, tasks) for index, name in enumerate(names)}
    lane_of = [states[task.lane] for task in tasks]
    computing = states.get(COMPUTE)
    clock = _Clock(len(tasks))
    changed = list(states.values())  # lanes whose queue or running task has changed
    released = [number for number, count in enumerate(waiting) if count == 0]
    while True:
        released.sort()
        for number in released:
            lane_of[number].enqueue(number)
            changed.append(lane_of[number])
        if len(changed) > 1:
            changed.sort(key=_index)
        for state in changed:
            if state.running is None and (work := state.next()) is not None:
                state.running = work
                clock.begin(work)
            if state is computing:
                clock.set_computing(state.running is not None)
        changed, released = [], []
        ended = clock.advance()
        if not ended:
            return clock.times
        for work in ended:
            state = lane_of[work.members[0]]
            state.running = None
            changed.append(state)
            for number in work.members:
                for follower in after[number]:
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        released.append(follower)


class _Work:
    """What a lane serves at a time: one task, or several fused tasks."""

    __slots__ = ("end", "left", "members", "overlapped_seconds", "seconds", "since")

    def __init__(self, members: Sequence[int], seconds: float, overlapped_seconds: float) -> None:
        self.members = members
        self.seconds = seconds
        self.overlapped_seconds = overlapped_seconds
        self.left = 1.0  # the share that is left at `since`
        self.since = 0.0
        self.end = math.inf


class _Clock:
    """The ends of all running tasks; those with two paces are rescheduled whenever computing begins or stops."""

    def __init__(self, count: int) -> None:
        self.times = Times(*([math.inf] * count for _ in range(2)))
        self._now = 0.0
        self._ends: list[tuple[float, int, int, _Work]] = []
        self._pushed = 0
        self._computing = False
        self._shared: set[_Work] = set()

    def begin(self, work: _Work) -> None:
        for number in work.members:
            self.times.starts[number] = self._now
        if work.overlapped_seconds != work.seconds and work.overlapped_seconds > 0 < work.seconds:
            self._shared.add(work)
        self._continue(work)

    def set_computing(self, computing: bool) -> None:
        if computing == self._computing:
            return
        for work in self._shared:
            work.left -= (self._now - work.since) / (work.overlapped_seconds if self._computing else work.seconds)
        self._computing = computing
        for work in self._shared:
            self._continue(work)

    def advance(self) -> list[_Work]:
        """Advance to the next end of a task, and return what ends there: nothing if nothing is running."""
        ended: list[_Work] = []
        while self._ends and (not ended or self._ends[0][0] == self._now):
            end, _, _, work = heapq.heappop(self._ends)
            if end == work.end:  # otherwise it was rescheduled
                self._now = end
                work.end = math.inf
                self._shared.discard(work)
                ended.append(work)
                for number in work.members:
                    self.times.ends[number] = end
        return ended

    def _continue(self, work: _Work) -> None:
        work.since = self._now
        left = work.left if work.left > 0 else 0.0
        work.end = self._now + left * (work.overlapped_seconds if self._computing else work.seconds)
        self._pushed += 1
        heapq.heappush(self._ends, (work.end, work.members[0], self._pushed, work))


def _index(state: _LaneState) -> int:
    return state.index


class _LaneState:
    """The state of a lane: the tasks that are queued, those admitted, and what is running."""

    def __init__(self, lane: Lane, index: int, tasks: Sequence[Task]) -> None:
        self.lane = lane
        self.serves_singly = lane.fuses is None and lane.credit_bytes <= 0
        self.index = index
        self.tasks = tasks
        self.queue: list[tuple[float, int, int]] = []
        self.admitted: deque[int] = deque()
        self.admitted_bytes = 0.0
        self.running: _Work | None = None
        self._enqueued = 0

    def enqueue(self, number: int) -> None:
        self._enqueued += 1
        heapq.heappush(
            self.queue, (self.tasks[number].urgency if self.lane.by_urgency else 0.0, self._enqueued, number)
        )

    def next(self) -> _Work | None:
        """Admit what the credit allows, and return the first admitted task, or all of them fused."""
        if self.serves_singly:
            return self._alone(heapq.heappop(self.queue)[2]) if self.queue else None
        while self.queue and (not self.admitted or self.admitted_bytes < self.lane.credit_bytes):
            number = heapq.heappop(self.queue)[2]
            self.admitted.append(number)
            self.admitted_bytes += self.tasks[number].nbytes
        if not self.admitted:
            return None
        if self.lane.fuses is None:
            number = self.admitted.popleft()
            self.admitted_bytes -= self.tasks[number].nbytes
            return self._alone(number)
        members = tuple(self.admitted)
        self.admitted.clear()
        self.admitted_bytes = 0.0
        fused = [self.tasks[number] for number in members]
        overlapped_seconds = (
            task.seconds if task.overlapped_seconds is None else task.overlapped_seconds for task in fused
        )
        return _Work(
            members, self.lane.fuses + sum(t.seconds for t in fused), self.lane.fuses + sum(overlapped_seconds)
        )

    def _alone(self, number: int) -> _Work:
        task = self.tasks[number]
        return _Work(
            (number,), task.seconds, task.seconds if task.overlapped_seconds is None else task.overlapped_seconds
        )

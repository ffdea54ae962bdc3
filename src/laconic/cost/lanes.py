"""Tasks over lanes: what is served when.

A lane serves one task at a time, of those that are ready: in the order in which they became so, or the most urgent
first. A lane with a credit takes tasks over before they are served, so many bytes at a time, and serves what it has
taken as it came: what is more urgent waits for no more than that. A lane that fuses takes over as much when it is
free, and serves it as one. A task may take longer beside computing than
alone: it goes on at the one pace while the lane `compute` is at work, at the other while that waits.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COMPUTE = "compute"


class Task(NamedTuple):
    """Something that takes a lane for some time, after other tasks (by number) have ended."""

    lane: str
    seconds: float
    needs: tuple[int, ...] = ()
    urgency: float = 0.0  # the smaller the sooner
    nbytes: float = 0.0
    beside: float | None = None  # seconds while computing goes on; none: as many


@dataclass(frozen=True)
class Lane:
    """How a lane chooses among what is ready."""

    by_urgency: bool = False
    credit_bytes: float = 0.0  # taken over ahead of time, beside the one that is served
    fuses: float | None = None  # seconds before what was taken over goes out as one


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
    names = sorted({task.lane for task in tasks}, key=lambda name: name != COMPUTE)  # computing begins first
    desks = {name: _Desk((lanes or {}).get(name, Lane()), place, tasks) for place, name in enumerate(names)}
    own = [desks[task.lane] for task in tasks]
    computing = desks.get(COMPUTE)
    clock = _Clock(len(tasks))
    touched = list(desks.values())  # whose queue or whose work has changed
    released = [number for number, count in enumerate(waiting) if count == 0]
    while True:
        released.sort()
        for number in released:
            own[number].come(number)
            touched.append(own[number])
        if len(touched) > 1:
            touched.sort(key=_place)
        for desk in touched:
            if desk.served is None and (work := desk.next()) is not None:
                desk.served = work
                clock.begin(work)
            if desk is computing:
                clock.computes(desk.served is not None)
        touched, released = [], []
        ended = clock.advance()
        if not ended:
            return clock.times
        for work in ended:
            desk = own[work.members[0]]
            desk.served = None
            touched.append(desk)
            for number in work.members:
                for follower in after[number]:
                    waiting[follower] -= 1
                    if waiting[follower] == 0:
                        released.append(follower)


class _Work:
    """What a lane serves at a time: a task, or several as one."""

    __slots__ = ("beside", "end", "left", "members", "seconds", "since")

    def __init__(self, members: Sequence[int], seconds: float, beside: float) -> None:
        self.members = members
        self.seconds = seconds
        self.beside = beside
        self.left = 1.0  # of it, at `since`
        self.since = 0.0
        self.end = math.inf


class _Clock:
    """When what is served ends; what has two paces is put off or brought forward as computing begins and stops."""

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
        if work.beside != work.seconds and work.beside > 0 < work.seconds:
            self._shared.add(work)
        self._continue(work)

    def computes(self, computing: bool) -> None:
        if computing == self._computing:
            return
        for work in self._shared:
            work.left -= (self._now - work.since) / (work.beside if self._computing else work.seconds)
        self._computing = computing
        for work in self._shared:
            self._continue(work)

    def advance(self) -> list[_Work]:
        """Go to the next end; what ends there, nothing where nothing is served."""
        ended: list[_Work] = []
        while self._ends and (not ended or self._ends[0][0] == self._now):
            end, _, _, work = heapq.heappop(self._ends)
            if end == work.end:  # else it was put off or brought forward
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
        work.end = self._now + left * (work.beside if self._computing else work.seconds)
        self._pushed += 1
        heapq.heappush(self._ends, (work.end, work.members[0], self._pushed, work))


def _place(desk: _Desk) -> int:
    return desk.place


class _Desk:
    """A lane at work: what waits, what was taken over, what is served."""

    def __init__(self, lane: Lane, place: int, tasks: Sequence[Task]) -> None:
        self.lane = lane
        self.plain = lane.fuses is None and lane.credit_bytes <= 0
        self.place = place
        self.tasks = tasks
        self.waits: list[tuple[float, int, int]] = []
        self.taken: deque[int] = deque()
        self.taken_bytes = 0.0
        self.served: _Work | None = None
        self._came = 0

    def come(self, number: int) -> None:
        self._came += 1
        heapq.heappush(self.waits, (self.tasks[number].urgency if self.lane.by_urgency else 0.0, self._came, number))

    def next(self) -> _Work | None:
        """Take over what the credit allows, and give the first of it, or all of it."""
        if self.plain:
            return self._alone(heapq.heappop(self.waits)[2]) if self.waits else None
        while self.waits and (not self.taken or self.taken_bytes < self.lane.credit_bytes):
            number = heapq.heappop(self.waits)[2]
            self.taken.append(number)
            self.taken_bytes += self.tasks[number].nbytes
        if not self.taken:
            return None
        if self.lane.fuses is None:
            number = self.taken.popleft()
            self.taken_bytes -= self.tasks[number].nbytes
            return self._alone(number)
        members = tuple(self.taken)
        self.taken.clear()
        self.taken_bytes = 0.0
        took = [self.tasks[number] for number in members]
        beside = (task.seconds if task.beside is None else task.beside for task in took)
        return _Work(members, self.lane.fuses + sum(t.seconds for t in took), self.lane.fuses + sum(beside))

    def _alone(self, number: int) -> _Work:
        task = self.tasks[number]
        return _Work((number,), task.seconds, task.seconds if task.beside is None else task.beside)

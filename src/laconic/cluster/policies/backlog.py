"""Jobs that wait, kept in order from one decision to the next, and which of them run instead of others."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.state import Arrival, Completion, Event, HostLost, State

Keys = Callable[[NDArray[np.int64]], NDArray[np.float64] | NDArray[np.int64]]
"""Returns the keys of jobs now: the smaller, the more urgent; of equals, whoever came first is."""


class Chosen(NamedTuple):
    """Who starts, in order, and who is preempted."""

    start: list[int]
    stop: list[int]


class _Head(NamedTuple):
    """The most urgent job of a size that has not been looked at yet, and its place among those."""

    key: float
    job: int
    size: int
    place: int


class Backlog:
    """The jobs that wait, apart by the sizes of their gangs and each size in the order of keys, which do not change
    while a job waits: so that a decision costs as much as has changed since the last.

    Where jobs get GPUs in the order of their keys and those are passed over that are too large for what is left, less
    is left the later a job's turn is: if one is passed over, so are all behind it that are as large.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}  # the key and the size of each job
        self._sizes: dict[int, list[tuple[float, int]]] = {}
        self._workers = 0

    def follow(self, state: State, changed: Iterable[int], keys: Keys) -> None:
        """Look again at jobs that may have begun to wait, or do not wait any more, or have other keys.

        - `state`: the cluster now.
        - `changed`: these jobs.
        - `keys`: of jobs.
        """
        for job in changed:
            if (known := self._known.pop(job, None)) is not None:
                jobs = self._sizes[known[1]]
                del jobs[bisect_left(jobs, (known[0], job))]
                self._workers -= known[1]
            if job in state.active and job not in state.running:
                key, size = keys(np.array([job])).item(), state.jobs[job].workers
                self._known[job] = key, size
                insort(self._sizes.setdefault(size, []), (key, job))
                self._workers += size

    def is_of(self, state: State) -> bool:
        """Tell whether as many jobs wait as are here.

        - `state`: the cluster now.
        """
        return len(self._known) == len(state.active) - len(state.running)

    def chosen(self, state: State, keys: Keys) -> Chosen:
        """Return who starts and who is preempted where jobs get GPUs in the order of their keys while these last,
        whole gangs only, and those that are too large for what is left are passed over.

        - `state`: the cluster now, all of whose jobs that wait are here.
        - `keys`: of jobs that run.
        """
        if self._workers <= state.room.gpus:
            return Chosen([job for _, job in heapq.merge(*self._sizes.values())], [])
        gpus = state.cluster.gpus - sum(state.cluster.hosts[host].gpus for host in state.room.lost)
        running = _Running(state, keys)
        heads = [_Head(*jobs[0], size, 0) for size, jobs in self._sizes.items() if jobs]
        heapq.heapify(heads)
        start, free = list[int](), gpus - running.workers
        if free < 0:  # not even those that run fit, as their gangs have grown
            return self._in_turn(running, 0, gpus, heads, start)
        while heads:
            head = heads[0]
            if head.size <= free:
                self._take(heads, start)
                free -= head.size
                continue
            place = running.more_urgent(head)
            left = free + running.workers_behind(place)
            if head.size <= left:
                return self._in_turn(running, place, left, heads, start)
            heapq.heappop(heads)
        return Chosen(start, [])

    def _in_turn(self, running: _Running, place: int, left: int, heads: list[_Head], start: list[int]) -> Chosen:
        """Go on where somebody may be preempted: give what is left to jobs one after another, those that run from a
        place on and those that wait."""
        stop: list[int] = []
        while left:
            while heads and heads[0].size > left:
                heapq.heappop(heads)
            end = running.more_urgent(heads[0]) if heads else running.count
            place, left, too_large = running.kept(place, end, left)
            if too_large is not None:
                stop.append(too_large)
            elif heads and heads[0].size <= left:
                left -= heads[0].size
                self._take(heads, start)
            elif not heads:
                break
        return Chosen(start, sorted([*stop, *running.behind(place)]))

    def _take(self, heads: list[_Head], start: list[int]) -> None:
        """Let the most urgent job start."""
        _, job, size, place = heads[0]
        start.append(job)
        jobs = self._sizes[size]
        if place + 1 < len(jobs):
            heapq.heapreplace(heads, _Head(*jobs[place + 1], size, place + 1))
        else:
            heapq.heappop(heads)


class _Running:
    """The jobs that run, which are put in order only when somebody asks who comes before whom."""

    def __init__(self, state: State, keys: Keys) -> None:
        self._jobs = np.fromiter(state.running, np.int64, len(state.running))
        self._sizes = state.workers()
        self._keys, self._sorted = keys, False
        self.workers, self.count = int(self._sizes[self._jobs].sum()), len(self._jobs)

    def _sort(self) -> None:
        if not self._sorted:
            self._sorted = True
            self._jobs.sort()
            keys = self._keys(self._jobs)
            order = keys.argsort(kind="stable")
            self._jobs, self._by_key = self._jobs[order], keys[order]
            self._ahead = self._sizes[self._jobs].cumsum()

    def more_urgent(self, head: _Head) -> int:
        """Return how many come before a job that waits."""
        self._sort()
        place = int(self._by_key.searchsorted(head.key, "left"))
        while place < len(self._jobs) and self._by_key[place] == head.key and self._jobs[place] < head.job:
            place += 1
        return place

    def workers_behind(self, place: int) -> int:
        """Return the workers of those from a place on."""
        return self.workers - self._before(place)

    def kept(self, place: int, end: int, left: int) -> tuple[int, int, int | None]:
        """Let those from one place to another keep their GPUs while these last. Return the place after the last that
        was looked at, what is left, and who was too large for it, if anybody was.

        - `place`, `end`: from where, and up to where.
        - `left`: the GPUs.
        """
        self._sort()
        before = self._before(place)
        last = min(int(self._ahead.searchsorted(before + left, "right")), end)
        left -= self._before(last) - before
        return (last, left, None) if last == end else (last + 1, left, int(self._jobs[last]))

    def behind(self, place: int) -> list[int]:
        """Return those from a place on."""
        found: list[int] = self._jobs[place:].tolist()
        return found

    def _before(self, place: int) -> int:
        """Return the workers of those before a place."""
        return int(self._ahead[place - 1]) if place else 0


def touched(events: Sequence[Event]) -> Iterator[int]:
    """Yield the jobs that wait, or wait no longer, since something happened.

    - `events`: what happened.
    """
    for event in events:
        if isinstance(event, Arrival | Completion):
            yield event.job
        elif isinstance(event, HostLost):
            yield from event.jobs

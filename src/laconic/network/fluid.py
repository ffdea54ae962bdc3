"""A fluid model of a network: transfers share links max-min fairly, and rates change only at events.

A *job* is a whole operation (a ring all-reduce, a message): after its latency it loads each of its links in proportion
to its progress. Whenever a job begins or ends, rates are computed again. Jobs of one *lane* (a process group's
collectives) start in order and only so many run at a time, as a backend's threads do. Links serve the more urgent
classes strictly first: those of a class share what they leave.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.network.max_min import fill

_TOLERANCE = 1e-12


@dataclass(eq=False)
class Job:
    """A transfer of so many bytes over each of some links, after a latency; `finished` is called with its end."""

    links: NDArray[np.int64]
    load_bytes: NDArray[np.float64]
    latency_seconds: float
    finished: Callable[[float], None]
    lane: Hashable = None
    began_seconds: float = 0.0  # when its lane started it
    left: float = 1.0  # the share of the job that is left
    rate: float = 0.0  # of the whole job, per second
    fastest: float = math.inf  # its largest rate, where something else than links limits it
    pace: float = 1.0  # its relative rate while all workers compute on the same processors
    urgency: float = 0.0  # its priority class on every link: the smallest is served first

    def __post_init__(self) -> None:
        self.heaviest_bytes = float(self.load_bytes.max()) if len(self.load_bytes) else 0.0


@dataclass
class _Lane:
    running: int = 0
    waiting: deque[Job] = field(default_factory=deque)


class Fluid:
    """All transfers of a simulation, advanced from event to event."""

    def __init__(self, capacities: NDArray[np.float64], lane_width: int = 2) -> None:
        self._capacities, self._lane_width = capacities, lane_width
        self._now = 0.0
        self._flowing: list[Job] = []
        self._events: list[tuple[float, int, Callable[[Any], None], Job | None]] = []
        self._serial = itertools.count()
        self._lanes: dict[Hashable, _Lane] = {}
        self._stale = False
        self._computing = 0.0  # the share of workers that compute now

    def computing(self, begin_seconds: float, end_seconds: float, share: float) -> None:
        """Note that a share of the workers computes in this period, which lies ahead of what has been simulated."""
        for seconds, change in ((begin_seconds, share), (end_seconds, -share)):
            self._push(max(seconds, self._now), partial(self._compute, change), None)

    def _compute(self, change: float, nothing: object) -> None:
        self._computing += change

    def change(self, seconds: float, links: Sequence[int], bytes_per_second: float) -> None:
        """Give some links another capacity from this time on, which lies ahead of what has been simulated."""
        self._push(max(seconds, self._now), partial(self._set, list(links), bytes_per_second), None)

    def _set(self, links: list[int], bytes_per_second: float, nothing: object) -> None:
        self._capacities = self._capacities.copy()
        self._capacities[links] = bytes_per_second
        self._stale = True

    def add(self, job: Job, seconds: float) -> None:
        """Add a job at this time, which may lie ahead of what has been simulated but not behind."""
        self._push(max(seconds, self._now), self._admit, job)

    def next_event(self) -> float:
        """Return the time of the next event if nothing is added before: infinity when nothing is in flight."""
        self._solve()
        ends = (self._now + job.left / self._rate(job) for job in self._flowing if job.rate > 0)
        return min(min(ends, default=math.inf), self._events[0][0] if self._events else math.inf)

    def advance(self, seconds: float) -> None:
        """Advance to the time of the next event and let it happen."""
        self._solve()
        elapsed, self._now = seconds - self._now, seconds
        for job in self._flowing:
            job.left -= self._rate(job) * elapsed
        for job in [j for j in self._flowing if j.left <= _TOLERANCE or j.left <= j.rate * _TOLERANCE]:
            self._flowing.remove(job)
            self._stale = True
            self._end(job)
        while self._events and self._events[0][0] <= seconds:
            _, _, happen, about = heapq.heappop(self._events)
            happen(about)

    def _rate(self, job: Job) -> float:
        return job.rate * (1 - self._computing * (1 - job.pace))

    def _push(self, seconds: float, happen: Callable[[Any], None], job: Job | None) -> None:
        heapq.heappush(self._events, (seconds, next(self._serial), happen, job))

    def _admit(self, job: Job) -> None:
        lane = self._lanes.setdefault(job.lane, _Lane())
        if job.lane is not None and lane.running >= self._lane_width:
            lane.waiting.append(job)
            return
        lane.running += 1
        job.began_seconds = self._now
        self._push(self._now + job.latency_seconds, self._join, job)

    def _join(self, job: Job) -> None:
        if job.heaviest_bytes <= 0:
            self._end(job)
            return
        self._flowing.append(job)
        self._stale = True

    def _end(self, job: Job) -> None:
        lane = self._lanes[job.lane]
        lane.running -= 1
        if lane.waiting:
            self._push(self._now, self._admit, lane.waiting.popleft())
        job.finished(self._now)

    def _solve(self) -> None:
        """Compute max-min fair rates by progressive filling, one priority class after another, the most urgent first.

        All rates rise equally until a link is full; those of its jobs stay, the others go on rising.
        """
        if not self._stale:
            return
        self._stale = False
        if len(self._flowing) == 1:  # the slowest link decides
            (job,) = self._flowing
            job.rate = min(job.fastest, float((self._capacities[job.links] / job.load_bytes).min()))
            return
        if not self._flowing:
            return
        links, places = np.unique(np.concatenate([job.links for job in self._flowing]), return_inverse=True)
        weights = np.zeros((len(self._flowing), len(links)))
        start = 0
        for row, job in enumerate(self._flowing):
            weights[row, places[start : start + len(job.links)]] = job.load_bytes / job.heaviest_bytes
            start += len(job.links)
        own = [job.fastest * job.heaviest_bytes for job in self._flowing]  # limits like links of their own
        weights = np.hstack([weights, np.eye(len(own))])
        room = np.concatenate([self._capacities[links], own])
        nothing = room * _TOLERANCE
        for level in sorted({job.urgency for job in self._flowing}):
            rising = np.array([job.urgency == level for job in self._flowing])
            shares = fill(weights, room, rising)
            for k in np.flatnonzero(rising):
                self._flowing[k].rate = float(shares[k] / self._flowing[k].heaviest_bytes)
            room[room < nothing] = 0.0  # rounding errors of full links

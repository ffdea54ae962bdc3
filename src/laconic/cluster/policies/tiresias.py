"""Tiresias: least attained service in few queues, for jobs whose durations nobody knows."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.decision import Changed, Decision
from laconic.cluster.gittins import gittins_index
from laconic.cluster.job import Job
from laconic.cluster.placement import consolidated, emptiest
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique

GPU_HOUR = 3600.0  # seconds of a GPU
EARLY = 1e-3  # seconds: more than times and services round
NEVER = 1 << 40  # more than there are starts, or entries
SPAN = 2 * NEVER


@dataclass
class Memory:
    """What is known of jobs, in arrays by their numbers, and of those that are done.

    - `queue`: the queue of each, the first of which is 0.
    - `rank`: by which all are ordered: `SPAN` for each queue before its own and its turn there, which is how many had
      started when it did, and before that, `NEVER` and how many had entered a queue when it came; or how many had
      entered a queue when it entered this one.
    - `forgiven`: the GPU-seconds that it had when it was promoted last.
    - `executed`: the seconds that it had run when that was.
    - `waited`: the seconds that it had waited since it ran first, when that was.
    - `entries`, `starts`: how many have entered a queue, and started.
    - `crossing`: until when no running job comes to the end of its queue.
    - `history`: what those that are done had in all, in ascending order.
    - `jobs`: all jobs, for which the following holds.
    - `ends`: about when each job that runs comes to the end of its queue, unless that is the last.
    - `next_ends`: the same, the soonest first, and what does not hold any more.
    """

    queue: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rank: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    forgiven: np.ndarray = field(default_factory=lambda: np.zeros(0))
    executed: np.ndarray = field(default_factory=lambda: np.zeros(0))
    waited: np.ndarray = field(default_factory=lambda: np.zeros(0))
    entries: int = 0
    starts: int = 0
    crossing: float = -math.inf
    history: list[float] = field(default_factory=list)
    jobs: Sequence[Job] | None = None
    ends: dict[int, float] = field(default_factory=dict)
    next_ends: list[tuple[float, int]] = field(default_factory=list)

    def hold(self, jobs: int) -> None:
        """Make room for so many jobs."""
        more = jobs - len(self.queue)
        if more > 0:
            for name in ("queue", "rank", "forgiven", "executed", "waited"):
                setattr(self, name, np.pad(getattr(self, name), (0, more)))


@technique(
    "tiresias",
    paper="Gu et al., NSDI 2019",
    evidence="published",
    reproduces="the completion time of every job of eight workloads, mean 4,038 s (Qiao et al., OSDI 2021, artifact)",
)
@dataclass(frozen=True)
class Tiresias(Policy):
    """Whoever has had least GPU-seconds runs, but for differences that do not matter: jobs are in queues by thresholds
    of the service that they have attained, the first queue goes before the next, and within a queue whoever started
    first. Those that no longer fit are preempted, gangs that are too large for what is left are passed over.

    A job that has waited for longer than `starvation` times what it has run goes back to the first queue, and its
    service counts anew. With `gittins` the order within a queue is by the Gittins index, for a quantum that ends with
    the queue, over the services of the jobs that are done by then.

    Every job is placed as one whose largest tensor is a large part of its model, on few hosts. Within a queue, and in
    placing, there are two readings: the paper's, and that of the version with which Pollux's authors compared
    theirs, in which jobs come by when they entered the queue and hosts by how empty they are.
    """

    thresholds: tuple[float, ...] = knob((16 * GPU_HOUR,), low=0, doc="GPU-seconds at which a queue ends")
    starvation: float = knob(0.0, low=0, doc="times what it has run that a job waits before it is promoted; 0: never")
    gittins: bool = knob(False, doc="whether the order within a queue is by the Gittins index")
    by_entry: bool = knob(False, doc="whether the order is by entering the queue, and the emptiest hosts are taken")
    interval: float = knob(0.0, low=0, doc="seconds between decisions; 0: at every event")

    @property
    def every(self) -> float | None:
        return self.interval or None

    def init(self) -> Memory:
        return Memory()

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        memory.hold(len(state.jobs))
        for event in events:
            if isinstance(event, Arrival):
                memory.rank[event.job] = memory.entries if self.by_entry else NEVER + memory.entries
                memory.entries += 1
            elif isinstance(event, Completion) and self.gittins:
                insort(memory.history, float(state.tables.attained[event.job]))
        if state.now >= memory.crossing:
            self._demote(state, memory)
        if self.starvation:
            for number in state.waiting:
                self._promote(state, number, memory)
        if memory.jobs is not state.jobs:
            memory.jobs, memory.ends, memory.next_ends = state.jobs, {}, []
            for number in state.running:
                self._expect(state, memory, number, state.tables.held.item(number))
        decision = run_in_order(state, self.order(state, memory), emptiest if self.by_entry else consolidated)
        grants = decision.grants
        assert type(grants) is Changed
        for number in grants.start:
            if not self.by_entry and memory.rank.item(number) % SPAN >= NEVER:
                memory.rank[number] = memory.starts
                memory.starts += 1
        return Decision(grants, self._next_change(state, memory, grants)), memory

    def order(self, state: State, memory: Memory) -> np.ndarray:
        """Return the jobs that are there in order, the most urgent first.

        - `state`: the cluster now.
        - `memory`: the queues.
        """
        jobs = state.numbers()
        if not self.gittins:
            found: np.ndarray = jobs[memory.rank[jobs].argsort(kind="stable")]
            return found
        queues = memory.queue[jobs]
        services = state.attained(jobs) - memory.forgiven[jobs]
        lasts = np.array([*self.thresholds, math.inf])[queues] - services
        pairs = zip(services.tolist(), lasts.tolist(), strict=True)
        indices = np.array([gittins_index(memory.history, service, last) for service, last in pairs])
        found = jobs[np.lexsort((memory.rank[jobs], -indices, queues))]
        return found

    def _demote(self, state: State, memory: Memory) -> None:
        """Let running jobs that have had much go to a later queue."""
        jobs = np.fromiter(state.running, np.int64, len(state.running))
        jobs.sort()
        queues = np.searchsorted(np.array(self.thresholds), state.attained(jobs) - memory.forgiven[jobs], side="right")
        lower = queues > memory.queue[jobs]
        if lower.any():
            for number, queue in zip(jobs[lower].tolist(), queues[lower].tolist(), strict=True):
                self._enter(memory, number, queue)
                self._expect(state, memory, number, state.tables.held.item(number))

    def _enter(self, memory: Memory, number: int, queue: int) -> None:
        """Let a job enter a queue."""
        turn = memory.entries if self.by_entry else memory.rank.item(number) % SPAN
        memory.queue[number], memory.rank[number] = queue, queue * SPAN + turn
        memory.entries += 1

    def _promote(self, state: State, number: int, memory: Memory) -> None:
        """Let a job that starves go to the first queue."""
        if not memory.queue[number] or self._starves(state, number, memory) > 0:
            return
        self._enter(memory, number, 0)
        memory.forgiven[number] = state.attained(number)
        memory.executed[number], memory.waited[number] = state.executed(number), self._waited(state, number)

    def _waited(self, state: State, number: int) -> float:
        """Return the seconds that a job has waited since it ran first."""
        return state.now - float(state.tables.first_start[number]) - float(state.executed(number))

    def _starves(self, state: State, number: int, memory: Memory) -> float:
        """Return in how many seconds a waiting job is promoted."""
        executed = float(state.executed(number)) - float(memory.executed[number])
        return self.starvation * executed - (self._waited(state, number) - float(memory.waited[number]))

    def _next_change(self, state: State, memory: Memory, grants: Changed) -> float | None:
        """Return when a job that runs comes to a threshold or one that waits starves, if nothing happens before."""
        for number, grant in grants.start.items():
            self._expect(state, memory, number, grant.gpus)
        soonest = self._next_end(state, memory, grants)
        memory.crossing = state.now + soonest - EARLY
        if self.interval:
            return None
        if self.starvation:
            waiting = (job for job in state.active if memory.queue[job] and job not in grants)
            soonest = min(soonest, *(self._starves(state, number, memory) for number in waiting), math.inf)
        return None if soonest == math.inf else math.nextafter(state.now + max(soonest, 1e-6), math.inf)

    def _expect(self, state: State, memory: Memory, number: int, gpus: float) -> None:
        """Note when a job that holds so many GPUs from now on comes to the end of its queue."""
        if memory.queue.item(number) < len(self.thresholds):
            memory.ends[number] = state.now + self._left(state, memory, number) / gpus
            heapq.heappush(memory.next_ends, (memory.ends[number], number))
        else:
            memory.ends.pop(number, None)

    def _left(self, state: State, memory: Memory, number: int) -> float:
        """Return the GPU-seconds after which a job's queue ends for it."""
        had: float = state.attained(number) - memory.forgiven.item(number)
        end: float = self.thresholds[memory.queue.item(number)]
        return end - had

    def _next_end(self, state: State, memory: Memory, grants: Changed) -> float:
        """Return in how many seconds a job that is to run comes to the end of its queue. When that will be was noted at
        its start, and has been rounded: those that may be the next are looked at once more."""
        found = math.inf
        near: list[tuple[float, int]] = []
        ends = memory.next_ends
        while ends and (not near or ends[0][0] <= near[0][0] + EARLY):
            end, number = heapq.heappop(ends)
            if memory.ends.get(number) == end and number in grants:
                near.append((end, number))
                start = grants.start.get(number)
                gpus = state.tables.held.item(number) if start is None else start.gpus
                found = min(found, self._left(state, memory, number) / gpus)
        for entry in near:
            heapq.heappush(ends, entry)
        return found

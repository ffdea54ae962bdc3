"""Tiresias: least attained service in few queues, for jobs whose durations nobody knows."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.decision import Changed, Decision
from laconic.cluster.gittins import gittins_index
from laconic.cluster.placement import consolidated, emptiest
from laconic.cluster.policies.by_priority import run_in_order
from laconic.cluster.policy import Policy
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique

GPU_HOUR = 3600.0  # seconds of a GPU


@dataclass
class Queued:
    """What is remembered of a job.

    - `queue`: its number; the first is 0.
    - `entered`: how many jobs had entered a queue before it entered its own.
    - `started`: how many jobs had started before it did first.
    - `forgiven`: the service that no longer counts, in GPU-seconds.
    - `executed`: the seconds that it had run when that was.
    - `waited`: the seconds that it had waited since it ran first, when that was.
    """

    queue: int
    entered: int
    started: float = math.inf
    forgiven: float = 0.0
    executed: float = 0.0
    waited: float = 0.0


@dataclass
class Memory:
    """The jobs that are there, how many have entered a queue and started, and what those that are done had in all."""

    jobs: dict[int, Queued] = field(default_factory=dict)
    entries: int = 0
    starts: int = 0
    history: list[float] = field(default_factory=list)


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
        for event in events:
            if isinstance(event, Arrival):
                memory.jobs[event.job] = Queued(0, memory.entries)
                memory.entries += 1
            elif isinstance(event, Completion):
                del memory.jobs[event.job]
                if self.gittins:
                    insort(memory.history, float(state.tables.attained[event.job]))
        self._demote(state, memory)
        if self.starvation:
            for number in memory.jobs:
                self._promote(state, number, memory)
        place = emptiest if self.by_entry else consolidated
        grants = run_in_order(state, self.order(state, memory), place).grants
        assert isinstance(grants, Changed)
        for number in grants.start:
            if memory.jobs[number].started == math.inf:
                memory.jobs[number].started = memory.starts
                memory.starts += 1
        return Decision(grants, self._next_change(state, memory, grants)), memory

    def service(self, state: State, number: int, job: Queued) -> float:
        """Return the GPU-seconds of a job that count."""
        return float(state.attained(number)) - job.forgiven

    def order(self, state: State, memory: Memory) -> list[int]:
        """Return the jobs, the most urgent first.

        - `state`: the cluster now.
        - `memory`: the queues.
        """

        def index(number: int, job: Queued) -> float:
            service = self.service(state, number, job)
            ends = self.thresholds[job.queue] if job.queue < len(self.thresholds) else math.inf
            return gittins_index(memory.history, service, ends - service)

        jobs = memory.jobs.values()
        keys: list[list[float]] = [
            [job.entered for job in jobs],
            [0.0 if self.by_entry else job.started for job in jobs],
            [-index(number, job) if self.gittins else 0.0 for number, job in memory.jobs.items()],
            [job.queue for job in jobs],
        ]
        found: list[int] = np.fromiter(memory.jobs, np.int64)[np.lexsort(keys)].tolist()
        return found

    def _demote(self, state: State, memory: Memory) -> None:
        """Let running jobs that have had much go to a later queue."""
        numbers = np.array(sorted(state.running), dtype=np.int64)
        jobs = [memory.jobs[number] for number in numbers.tolist()]
        services = state.attained(numbers) - np.array([job.forgiven for job in jobs])
        queues = np.searchsorted(np.array(self.thresholds), services, side="right")
        for at in np.flatnonzero(queues > np.array([job.queue for job in jobs], dtype=np.int64)).tolist():
            jobs[at].queue, jobs[at].entered = int(queues[at]), memory.entries
            memory.entries += 1

    def _promote(self, state: State, number: int, memory: Memory) -> None:
        """Let a job that starves go to the first queue."""
        job = memory.jobs[number]
        if job.queue and number not in state.running and self._starves(state, number, job) <= 0:
            job.queue, job.entered, job.forgiven = 0, memory.entries, float(state.attained(number))
            job.executed, job.waited = float(state.executed(number)), self._waited(state, number)
            memory.entries += 1

    def _waited(self, state: State, number: int) -> float:
        """Return the seconds that a job has waited since it ran first."""
        return state.now - float(state.tables.first_start[number]) - float(state.executed(number))

    def _starves(self, state: State, number: int, job: Queued) -> float:
        """Return in how many seconds a waiting job is promoted."""
        executed = float(state.executed(number)) - job.executed
        return self.starvation * executed - (self._waited(state, number) - job.waited)

    def _next_change(self, state: State, memory: Memory, grants: Changed) -> float | None:
        """Return when a job that runs comes to a threshold or one that waits starves, if nothing happens before."""
        if self.interval:
            return None
        numbers = [*(state.running.keys() - grants.stop - grants.start.keys()), *grants.start]
        jobs = [memory.jobs[number] for number in numbers]
        there = np.array(numbers, dtype=np.int64)
        gpus = state.tables.held[there]
        gpus[len(numbers) - len(grants.start) :] = [grant.gpus for grant in grants.start.values()]
        ends = np.array([*self.thresholds, math.inf])[[job.queue for job in jobs]]
        left = ends - (state.attained(there) - np.array([job.forgiven for job in jobs]))
        soonest = float((left / gpus).min()) if jobs else math.inf
        if self.starvation:
            waiting = (number for number, job in memory.jobs.items() if job.queue and number not in grants)
            soonest = min(soonest, *(self._starves(state, number, memory.jobs[number]) for number in waiting), math.inf)
        return None if soonest == math.inf else math.nextafter(state.now + max(soonest, 1e-6), math.inf)

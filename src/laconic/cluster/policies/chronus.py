"""Chronus: jobs with deadlines are promised leases, and the others take what is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.consolidation import exchanged, packed, sensitivity
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.leases import LeasePlan, Need
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique

EXACT = 1e-9  # of a lease: products of times round


@dataclass
class Memory:
    """What is remembered.

    - `plan`: the leases of accepted jobs.
    - `rejected`: jobs with deadlines that are not accepted.
    - `overrun`: those that were accepted and turned out to take longer than was estimated.
    - `speeds`, `weights`: of each job on few hosts, and what it loses on many.
    """

    plan: LeasePlan = field(default_factory=LeasePlan)
    rejected: dict[int, None] = field(default_factory=dict)
    overrun: set[int] = field(default_factory=set)
    speeds: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)


@technique("chronus", paper="Gao et al., SoCC 2021")
@dataclass(frozen=True)
class Chronus(Policy):
    """Time is cut into leases, at whose ends only jobs are preempted. A job with a deadline is accepted if it can be
    promised as many leases as it needs before its deadline beside what others were promised: in the plan as it is, in
    one that hands out leases by least slack, or in one that a mixed-integer program finds, which counts the weights of
    accepted jobs. Who was accepted stays so.

    All other GPUs go to the other jobs, within a lease as they become free: to those without a deadline and those that
    were rejected by the least remaining service, then to accepted ones ahead of their leases, which frees the earliest
    of these, then to those that are late anyway. Rejected jobs are tried again with each lease. A job that outlasts its
    estimate asks for another lease, and goes before all that were promised nothing where it gets none.

    Whom leases were promised is on as few hosts as possible: it counts with its GPUs rounded up, to a power of two or
    to whole hosts, and all of these are placed anew where one would be spread. Others that start exchange GPUs
    while that lets those that lose speed by it span fewer hosts. A lease is taken to be shorter by `overhead` times
    one plus the doublings of its GPUs, as in the authors' simulator.

    On Philly's jobs at the load of the authors' mix 0.4 to 10 % of deadlines are missed where first-in-first-out misses
    72 to 84 % and earliest deadline first 49 to 71 %. Preempting at any time, the latter misses 0.7 to 1.1 %, and jobs
    without deadlines take ten times as long.

    Readings: the value of a deadline is the job's weight, a soft one being no different while it can be met; what
    the profiler finds on hosts of its own is the estimate that the driver hands in.
    """

    lease: float = knob(1200.0, low=1e-3, doc="seconds of a lease")
    overhead: float = knob(30.0, low=0, doc="seconds of a lease that a start takes, for each doubling of GPUs")
    window: int = knob(50, low=0, doc="accepted jobs whose leases a program may change")
    nodes: int = knob(50, low=1, doc="nodes of a program's search")

    def init(self) -> Memory:
        return Memory()

    def decide(self, state: State, events: Sequence[Event], memory: Memory) -> tuple[Decision, Memory]:
        index = math.floor(state.now / self.lease + EXACT)
        begins = state.now <= index * self.lease * (1 + EXACT)
        first = index if begins else index + 1
        new = list[int]()
        for event in events:
            if isinstance(event, Arrival):
                self._meet(state, event.job, memory)
                if state.jobs[event.job].deadline < math.inf:
                    new.append(event.job)
            elif isinstance(event, Completion):
                memory.plan.drop(event.job)
                memory.rejected.pop(event.job, None)
        capacity = sum(host.gpus for h, host in enumerate(state.cluster.hosts) if h not in state.room.lost)
        if begins:
            self._renew(state, memory, first, capacity)
        self._accept(state, memory, new, first, capacity)
        wake = (index + 1) * self.lease
        if begins:
            promised = [job for job, held in memory.plan.leases.items() if index in held]
            return self._new_lease(state, memory, promised, wake), memory
        start = self._fill(state, memory, state.room.copy(), state.waiting)
        return Decision.changing(state.running, start, wake=wake), memory

    # ------------------------------------------------------------------------------------------ who is accepted

    def _meet(self, state: State, number: int, memory: Memory) -> None:
        job = state.jobs[number]
        together = packed(state.cluster, job.workers)
        memory.speeds[number] = job.progress.rate(0.0, together, state.cluster, ()).speed
        memory.weights[number] = sensitivity(job, state.cluster)

    def overhead_of(self, workers: int) -> float:
        """Return the seconds of a lease in which a job that starts proceeds by nothing.

        - `workers`: of the job.
        """
        return self.overhead * (1 + math.log2(workers))

    def need(self, state: State, number: int, memory: Memory) -> Need | None:
        """Return what a job needs to be in time, or None where a lease is too short for it.

        - `state`: the cluster now.
        - `number`: of the job.
        - `memory`: its speed.
        """
        job = state.jobs[number]
        useful = self.lease - self.overhead_of(job.workers)
        if useful <= 0:
            return None
        seconds = state.remaining(number).value / memory.speeds[number]
        leases = max(math.ceil(seconds / useful - EXACT), 1)
        last = math.floor(job.deadline / self.lease + EXACT) - 1
        rest = seconds - (leases - 1) * useful + self.overhead_of(job.workers)
        if (last + 1) * self.lease + rest <= job.deadline:  # it is done before the lease ends
            last += 1
        return Need(rounded(job.workers, state.cluster), leases, last, job.weight)

    def _renew(self, state: State, memory: Memory, first: int, capacity: int) -> None:
        """See at the beginning of a lease what is left of the plan."""
        plan = memory.plan
        for job in list(plan.leases):
            need = self.need(state, job, memory)
            if need is None or not plan.trim(job, need, first):
                if not state.remaining(job).value:
                    memory.overrun.add(job)
                plan.drop(job)
                memory.rejected[job] = None
        end = max((held[-1] for held in plan.leases.values() if held), default=first)
        while any(plan.used(lease) > capacity for lease in range(first, end + 1)):  # a host was lost
            latest = next(reversed(plan.leases))
            plan.drop(latest)
            memory.rejected[latest] = None

    def _accept(self, state: State, memory: Memory, new: Iterable[int], first: int, capacity: int) -> None:
        again = list(memory.rejected) if first * self.lease <= state.now * (1 + EXACT) else []
        hard = dict[int, Need]()
        for job in (*again, *sorted(new, key=lambda job: -state.jobs[job].weight)):
            need = self.need(state, job, memory)
            is_new = job not in memory.rejected
            memory.rejected[job] = None
            if need is None:
                continue
            if memory.plan.add(job, need, first, capacity) or (
                is_new and memory.plan.rearrange(job, need, first, capacity)
            ):
                del memory.rejected[job]
            elif is_new:
                hard[job] = need
        for job in memory.plan.add_most(hard, first, capacity, self.window, self.nodes) if hard else ():
            del memory.rejected[job]

    # ------------------------------------------------------------------------------------------ who runs where

    def _new_lease(self, state: State, memory: Memory, promised: Sequence[int], wake: float) -> Decision:
        """Return who runs in a lease that begins: whom it was promised, then others in the order of their turns."""
        room = state.room.copy()
        for job, grant in state.running.items():
            room.give(state.jobs[job], grant)
        grants = self._keep_promises(state, room, promised)
        left = room.gpus
        chosen = list[int]()
        for job in self._order(state, memory, (job for job in state.active if job not in grants)):
            if state.jobs[job].workers <= left:
                chosen.append(job)
                left -= state.jobs[job].workers
        for job in chosen:
            held = state.running.get(job)
            if held is not None and is_free(room, held):
                grants[job] = held
                room.take(state.jobs[job], held)
        grants |= self._fill(state, memory, room, (job for job in chosen if job not in grants))
        return Decision(grants, wake)

    def _keep_promises(self, state: State, room: Room, promised: Sequence[int]) -> dict[int, Grant]:
        """Place jobs to which the lease was promised, in a room that is as good as empty; those that run stay where
        they are, unless that spreads another over more hosts than it needs."""
        order = sorted(promised, key=lambda job: (-state.jobs[job].workers, job))
        for stay in (True, False):
            after, grants = room.copy(), dict[int, Grant]()
            if stay:
                for job in order:
                    held = state.running.get(job)
                    if held is not None and is_tight(held, state.cluster):
                        grants[job] = held
                        after.take(state.jobs[job], held)
            for job in order:
                if job not in grants and (grant := consolidated(after, state.jobs[job].workers)) is not None:
                    grants[job] = grant
                    after.take(state.jobs[job], grant)
            if len(grants) == len(order) and all(is_tight(grant, state.cluster) for grant in grants.values()):
                break
        for job, grant in grants.items():
            room.take(state.jobs[job], grant)
        return grants

    def _fill(self, state: State, memory: Memory, room: Room, jobs: Iterable[int]) -> dict[int, Grant]:
        """Return what jobs start on GPUs that nobody was promised."""
        start = dict[int, Grant]()
        if room.gpus:
            for job in self._order(state, memory, jobs):
                grant = consolidated(room, state.jobs[job].workers)
                if grant is not None:
                    start[job] = grant
                    room.take(state.jobs[job], grant)
                    if not room.gpus:
                        break
        return exchanged(start, memory.weights)

    def _order(self, state: State, memory: Memory, jobs: Iterable[int]) -> list[int]:
        """Return jobs in the order in which they get what is left."""

        def key(number: int) -> tuple[int, float, int]:
            job = state.jobs[number]
            seconds = state.remaining(number).value / memory.speeds[number]
            slack = job.deadline - state.now - seconds
            if number in memory.overrun:
                return 0, seconds, number
            if number in memory.plan.leases:
                return 2, slack * job.workers, number
            return (3 if slack < 0 else 1), seconds * job.workers, number

        return sorted(jobs, key=key)


def rounded(workers: int, cluster: Cluster) -> int:
    """Return the GPUs with which a gang counts so that gangs fill hosts without being spread: a power of two within a
    host, whole hosts beyond.

    - `workers`: of the gang.
    - `cluster`: the hosts.
    """
    size = max(host.gpus for host in cluster.hosts)
    if workers > size:
        return math.ceil(workers / size) * size
    return min(1 << (workers - 1).bit_length(), size)


def is_tight(grant: Grant, cluster: Cluster) -> bool:
    """Tell whether a gang is on as few hosts as it can be.

    - `grant`: what it holds.
    - `cluster`: the hosts.
    """
    return len(grant.by_host) == math.ceil(len(grant.slots) / max(host.gpus for host in cluster.hosts))


def is_free(room: Room, grant: Grant) -> bool:
    """Tell whether whole devices are free.

    - `room`: what is free.
    - `grant`: the devices.
    """
    return bool(np.all([room.free[host, device] >= ALMOST for host, device, _ in grant.slots]))

"""Philly's scheduler: quotas of tenants that may be borrowed, and locality that is relaxed with time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.quotas import quota_of
from laconic.cluster.racks import racks_of
from laconic.cluster.room import Room
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique


@dataclass
class Queues:
    """What is remembered: tenants in the order in which they came; when a job was refused for its locality first, and
    when it may try again; when running jobs were started."""

    tenants: list[str] = field(default_factory=list)
    refused: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    started: dict[int, float] = field(default_factory=dict)


@technique("philly", paper="Jeon et al., USENIX ATC 2019")
@dataclass(frozen=True)
class Philly(Policy):
    """Each tenant has a queue and a quota of GPUs. What others leave idle may be borrowed; when the cluster is nearly
    full, it is taken back by preemption for whoever waits within its quota, from those above theirs, the latest first.

    A gang starts whole: at first on as few hosts as can hold it, within one rack, the fullest that does. Where GPUs
    would suffice but not so, it backs off and tries again; after some time it takes more hosts of one rack, after twice
    that any. Who takes back its quota takes what there is; what somebody within its quota backs off from is not lent.

    The text's numbers of retries and back-off times vary; those here are round ones. Jobs that fail by themselves are
    not in a trace of durations: only those that lose a host are tried again.
    """

    quotas: tuple[int, ...] = knob((), low=0, doc="GPUs of each tenant, in the order of their first jobs; none: equal")
    relax_after: float | None = knob(1800.0, low=0, doc="seconds until locality is relaxed by a step; none: never")
    back_off: float = knob(120.0, above=0, doc="seconds between tries for locality")
    nearly_full: float = knob(0.9, low=0, high=1, doc="share of GPUs in use from which quotas are taken back")

    def init(self) -> Queues:
        return Queues()

    def decide(self, state: State, events: Sequence[Event], memory: Queues) -> tuple[Decision, Queues]:
        for event in events:
            if isinstance(event, Arrival) and state.jobs[event.job].tenant not in memory.tenants:
                memory.tenants.append(state.jobs[event.job].tenant)
            elif isinstance(event, Completion):
                for notes in (memory.refused, memory.again, memory.started):
                    notes.pop(event.job, None)
        return _Round(self, state, memory).run(), memory

    def quota(self, state: State, tenants: Sequence[str], tenant: str) -> int:
        """Return the GPUs of a tenant.

        - `state`: the cluster.
        - `tenants`: in the order of their first jobs.
        - `tenant`: whose quota is asked for; those that have none of their own get none.
        """
        return quota_of(self.quotas, state.cluster.gpus, tenants, tenant)


class _Round:
    """A decision in the making: who starts and who is stopped in one call of the policy."""

    def __init__(self, policy: Philly, state: State, memory: Queues) -> None:
        self._policy, self._state, self._memory = policy, state, memory
        self._room = state.room.copy()
        self._start: dict[int, Grant] = {}
        self._stop: list[int] = []
        self._held = dict.fromkeys(memory.tenants, 0)
        for job, grant in state.running.items():
            self._held[state.jobs[job].tenant] += len(grant.slots)
        self._quotas = {tenant: policy.quota(state, memory.tenants, tenant) for tenant in memory.tenants}
        self._all = state.room.gpus + sum(self._held.values())

    def run(self) -> Decision:
        waiting = self._state.waiting
        within = [job for job in waiting if self._is_within(job)]
        for job in within:  # its own quota comes before anything is borrowed
            if self._is_within(job):
                self._try(job, self._make_room(job))
        kept = sum(self._state.jobs[job].workers for job in within if job not in self._start and self._is_within(job))
        for job in waiting:
            if job not in self._start and self._room.gpus - kept >= self._state.jobs[job].workers:
                self._try(job, False)
        due = [
            self._memory.again[job]
            for job in waiting
            if job in self._memory.again and job not in self._start and self._room.gpus >= self._state.jobs[job].workers
        ]
        later = [time for time in due if time > self._state.now]
        return Decision.changing(self._state.running, self._start, self._stop, min(later, default=None))

    def _is_within(self, job: int) -> bool:
        about = self._state.jobs[job]
        return self._held[about.tenant] + about.workers <= self._quotas[about.tenant]

    def _make_room(self, job: int) -> bool:
        """Preempt what is borrowed, where the cluster is nearly full and the job's gang is not free; tell whether."""
        used, took = self._all - self._room.gpus, False
        if used < self._policy.nearly_full * self._all:
            return False
        while self._room.gpus < self._state.jobs[job].workers:
            borrowers = [
                other
                for other in self._state.running
                if other not in self._stop and self._held[self._tenant(other)] > self._quotas[self._tenant(other)]
            ]
            if not borrowers:
                break
            victim = max(borrowers, key=lambda other: (self._memory.started.get(other, 0.0), other))
            grant, took = self._state.running[victim], True
            self._stop.append(victim)
            self._held[self._tenant(victim)] -= len(grant.slots)
            self._room.give(self._state.jobs[victim], grant)
        return took

    def _tenant(self, job: int) -> str:
        return self._state.jobs[job].tenant

    def _try(self, job: int, anywhere: bool) -> None:
        """Start a job where its locality allows, or note that it was refused."""
        now, memory, about = self._state.now, self._memory, self._state.jobs[job]
        if self._room.gpus < about.workers or (not anywhere and now < memory.again.get(job, 0.0)):
            return
        patience, since = self._policy.relax_after, memory.refused.get(job, now)
        steps = 0 if patience is None else 2 if not patience else int((now - since) // patience)
        grant = consolidated(self._room, about.workers) if anywhere else local(self._room, about.workers, steps)
        if grant is None:
            memory.refused.setdefault(job, now)
            memory.again[job] = now + self._policy.back_off
            return
        self._room.take(about, grant)
        self._start[job] = grant
        self._held[about.tenant] += about.workers
        memory.started[job] = now
        for notes in (memory.refused, memory.again):
            notes.pop(job, None)


def local(room: Room, workers: int, relaxed: int) -> Grant | None:
    """Return slots of a gang: on as few hosts of one rack as could hold it; relaxed by a step, on any hosts of one
    rack; by two, anywhere. Racks with the fewest free GPUs come first. None where there are no such slots.

    - `room`: what is free.
    - `workers`: of the gang.
    - `relaxed`: by how many steps.
    """
    if relaxed >= 2:
        return consolidated(room, workers)
    fitting: list[tuple[int, int, list[int]]] = []
    for order, hosts in enumerate(racks_of(room.cluster.hosts).values()):
        free = np.sort(room.whole[hosts])[::-1]
        fewest = math.ceil(workers / max(room.cluster.hosts[host].gpus for host in hosts))
        if free[: len(hosts) if relaxed else fewest].sum() >= workers:
            fitting.append((int(free.sum()), order, hosts))
    if not fitting:
        return None
    return consolidated(room.only(min(fitting)[2]), workers)

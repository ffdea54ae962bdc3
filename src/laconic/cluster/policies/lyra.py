"""Lyra: servers on loan from inference, and elastic workers in what base demands leave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.elastic import curve_of
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.knapsack import multiple_choice
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import knob, technique

INFERENCE = "inference"
"""The rack of the servers that inference owns and lends."""


@dataclass
class Loans:
    """What Lyra remembers: the servers that it has on loan, the slots of every running job's base demand, and the
    speeds of jobs by number of workers."""

    hosts: set[int] = field(default_factory=set)
    base: dict[int, tuple[Slot, ...]] = field(default_factory=dict)
    curves: dict[int, np.ndarray] = field(default_factory=dict)

    def seconds(self, state: State, job: int, extra: int = 0) -> float:
        """Return the time that a job needs still with its base demand and so many workers more."""
        return state.remaining(job).value / float(self.curves[job][state.jobs[job].least + extra])


@technique("lyra", paper="Li et al., EuroSys 2023", aliases=("aryl",))
@dataclass(frozen=True)
class Lyra(Policy):
    """Idle servers of inference, those whose rack is `inference`, are lent to training and go back on demand.

    Base demands (of an elastic job the fewest workers) come first, the shortest job first, as many as fit; they are not
    preempted but by a reclaim. What is left goes to elastic jobs by an exact knapsack: the value of k more workers is
    the time that the job is done sooner. Base demands prefer training's servers, the largest first; workers beyond them
    are grouped on loaned servers, so that going back stops nobody. Of several servers those go back whose jobs count
    least, a job that spans m servers with 1/m on each.
    """

    loaned: tuple[int, ...] = knob((), low=0, doc="servers on loan in each period of a cycle, which begins at time 0")
    period: float = knob(3600.0, above=0, doc="seconds of a period")

    def init(self) -> Loans:
        return Loans()

    def decide(self, state: State, events: Sequence[Event], memory: Loans) -> tuple[Decision, Loans]:
        for event in events:
            if isinstance(event, Arrival):
                memory.curves[event.job] = curve_of(state.jobs[event.job], state.cluster)
            elif isinstance(event, Completion):
                del memory.curves[event.job]
        memory.base = {job: slots for job, slots in memory.base.items() if job in state.running}
        self._lend(state, memory)
        room = state.room.copy()
        for job, grant in state.running.items():
            room.give(state.jobs[job], grant)
        for host in _lenders(state.cluster) - memory.hosts:
            room.lose(host)
        for job, slots in memory.base.items():
            room.take(state.jobs[job], Grant(slots))
        self._start_base(state, memory, room)
        extra = self._extra(state, memory, room.gpus)
        more = self._grow(state, memory, room, extra)
        grants = {job: Grant.of((*slots, *more.get(job, ()))) for job, slots in memory.base.items()}
        wake = (state.now // self.period + 1) * self.period if self.loaned else None
        return Decision(grants, wake), memory

    def _lend(self, state: State, memory: Loans) -> None:
        """Take servers on loan, or give some back, with the jobs whose base demand is there preempted."""
        there = _lenders(state.cluster) - state.room.lost
        memory.hosts &= there
        wanted = self.loaned[int(state.now // self.period) % len(self.loaned)] if self.loaned else 0
        if wanted > len(memory.hosts):
            memory.hosts |= set(sorted(there - memory.hosts)[: wanted - len(memory.hosts)])
        elif wanted < len(memory.hosts):
            spans = {job: {slot.host for slot in slots} for job, slots in memory.base.items()}
            back, preempted = reclaim(len(memory.hosts) - wanted, memory.hosts, spans)
            memory.hosts -= set(back)
            for job in preempted:
                del memory.base[job]

    def _start_base(self, state: State, memory: Loans, room: Room) -> None:
        """Choose jobs to start, the shortest first, and place them, the largest first."""
        left, chosen = room.gpus, list[int]()
        waiting = [job for job in state.active if job not in memory.base]
        for job in sorted(waiting, key=lambda job: (memory.seconds(state, job), job)):
            if state.jobs[job].least <= left:
                chosen.append(job)
                left -= state.jobs[job].least
        training = room.copy()
        for host in memory.hosts:
            training.lose(host)
        for job in sorted(chosen, key=lambda job: (-state.jobs[job].least, job)):
            grant = consolidated(training, state.jobs[job].least)
            if grant is None:
                grant = consolidated(room, state.jobs[job].least)
            assert grant is not None  # it was counted
            memory.base[job] = grant.slots
            room.take(state.jobs[job], grant)
            training.take(state.jobs[job], grant)

    def _extra(self, state: State, memory: Loans, left: int) -> dict[int, int]:
        """Return the workers beyond its base demand that each elastic job gets."""
        elastic = [job for job in memory.base if state.jobs[job].most > state.jobs[job].least]
        if not left or not elastic:
            return {}
        values, weights = list[list[float]](), list[list[int]]()
        for job in elastic:
            steps = range(1, min(state.jobs[job].most - state.jobs[job].least, left) + 1)
            values.append([memory.seconds(state, job) - memory.seconds(state, job, k) for k in steps])
            weights.append(list(steps))
        return dict(zip(elastic, multiple_choice(values, weights, left), strict=True))

    def _grow(self, state: State, memory: Loans, room: Room, extra: Mapping[int, int]) -> dict[int, list[Slot]]:
        """Place workers beyond base demands: where they are, then on loaned servers, then on the fullest others."""
        placed: dict[int, list[Slot]] = {}
        for job, workers in extra.items():
            held = state.running[job].slots if job in state.running else ()
            placed[job] = [slot for slot in held if room.free[slot.host, slot.device] >= ALMOST][:workers]
            if placed[job]:
                room.take(state.jobs[job], Grant(tuple(placed[job])))
        for job, workers in extra.items():
            for _ in range(workers - len(placed[job])):
                free = [host for host in range(len(room.whole)) if room.whole[host]]
                host = min(free, key=lambda host: (host not in memory.hosts, room.whole[host], host))
                device = int((room.free[host] >= ALMOST).argmax())
                placed[job].append(Slot(host, device))
                room.take(state.jobs[job], Grant((placed[job][-1],)))
        return placed


def reclaim(servers: int, loaned: Collection[int], spans: Mapping[int, Collection[int]]) -> tuple[list[int], list[int]]:
    """Return which servers go back and which jobs are preempted for it, greedily: the server with the smallest cost,
    the sum over its jobs of one over the servers that the job spans; who is preempted costs nothing on the others.

    - `servers`: how many have to go back.
    - `loaned`: those on loan.
    - `spans`: the servers that hold base workers of each job, by its number.
    """
    back, preempted = list[int](), list[int]()
    left = {job: set(hosts) for job, hosts in spans.items()}
    for _ in range(servers):
        costs = {host: 0.0 for host in loaned if host not in back}
        for hosts in left.values():
            for host in hosts & costs.keys():
                costs[host] += 1 / len(hosts)
        chosen = min(costs, key=lambda host: (costs[host], host))
        back.append(chosen)
        for job in [job for job, hosts in left.items() if chosen in hosts]:
            preempted.append(job)
            del left[job]
    return back, preempted


def _lenders(cluster: Cluster) -> set[int]:
    return {number for number, host in enumerate(cluster.hosts) if host.rack == INFERENCE}

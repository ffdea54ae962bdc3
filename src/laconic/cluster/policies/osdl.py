"""OSDL: jobs that span racks get optical circuits of their own between them, a slice, where ports are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from laconic.cluster.contention import Running
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job
from laconic.cluster.placement import consolidated, one_after_another
from laconic.cluster.policy import Policy
from laconic.cluster.racks import racks_of
from laconic.cluster.room import Room
from laconic.cluster.sending import OnLinks, Sending
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique


@technique("osdl", paper="Wang, Yoshikane, Balasis, Tsuritani, Computer Networks 214, 2022")
@dataclass(frozen=True)
class Osdl(Policy):
    """A job goes into one rack where it fits. Otherwise it goes into the fewest racks that have ports enough to wire
    what it sends, a ring or a star of racks, and holds these circuits as long as it runs; on them it meets nobody.

    Where ports are lacking, what a slice would save is weighed against the time until ports come free: the job waits
    where that is less, and runs over the shared packet switches otherwise. Jobs are considered in the order of their
    arrivals, and those that cannot start are passed over. Nothing is preempted and no circuit is changed while a job
    runs; what wiring takes is part of a start (`Costs.start`).

    A reading of an abstract: the paper also reuses circuits that are there and moves jobs, of which no details are
    known, and neither is done here.
    """

    patience: float = knob(1.0, low=0, doc="how often the time that a job waits for a slice must be won back")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        room, running, start = state.room.copy(), dict(state.running), dict[int, Grant]()
        for number in state.waiting:
            job = state.jobs[number]
            grant = in_racks(room, job, with_circuits=True)
            if grant is None and (shared := in_racks(room, job, with_circuits=False)) is not None:
                grant = None if self._is_worth_waiting(state, running, number, shared) else shared
            if grant is not None:
                room.take(job, grant)
                running[number] = start[number] = grant
        return Decision.changing(state.running, start), memory

    def _is_worth_waiting(self, state: State, running: dict[int, Grant], number: int, shared: Grant) -> bool:
        """Tell whether a job that could run over packet switches now would be done sooner with a slice later."""
        job, cluster = state.jobs[number], state.cluster
        sliced = replace(shared, circuits=circuits_of(job, shared, cluster))
        if max(ports_of(sliced).values()) > cluster.circuit_ports:
            return False
        there = [Running(state.jobs[other], grant, 0.0) for other, grant in running.items()]
        *others, over_packets = OnLinks().rates([*there, Running(job, shared, 0.0)], cluster)
        frees = [
            state.remaining(other).value / rate.speed
            for (other, grant), rate in zip(running.items(), others, strict=True)
            if grant.circuits and rate.speed > 0
        ]
        if not frees:
            return False
        left = state.remaining(number).value
        faster = job.progress.rate(0.0, sliced, cluster, ()).speed
        return left / over_packets.speed - left / faster > self.patience * min(frees)


def circuits_of(job: Job, grant: Grant, cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """Return the circuits that a job's traffic between racks needs: a ring of its racks, or a star around the rack of
    its first worker, where the server is.

    - `job`: who sends.
    - `grant`: where its workers are, rack by rack.
    - `cluster`: the hosts.
    """
    racks = list(dict.fromkeys(cluster.hosts[slot.host].rack for slot in grant.slots))
    if len(racks) == 1:
        return ()
    if isinstance(job.progress, Sending) and job.progress.pattern == "star":
        return tuple((racks[0], rack) for rack in racks[1:])
    return (*pairwise(racks), (racks[-1], racks[0])) if len(racks) > 2 else ((racks[0], racks[1]),)


def in_racks(room: Room, job: Job, with_circuits: bool) -> Grant | None:
    """Return slots in one rack, the fullest that holds a job; else in the fewest racks, the emptiest first, with the
    circuits that join them. None where there are too few GPUs, or too few ports.

    - `room`: what is free.
    - `job`: who is placed.
    - `with_circuits`: whether a job in several racks gets circuits; it then goes only where there are ports for them.
    """
    if job.workers > room.gpus:
        return None
    racks = racks_of(room.cluster.hosts)
    free = {rack: int(room.whole[hosts].sum()) for rack, hosts in racks.items()}
    if fitting := [rack for rack in racks if free[rack] >= job.workers]:
        return consolidated(room.only(racks[min(fitting, key=lambda rack: free[rack])]), job.workers)
    order = sorted((rack for rack in racks if free[rack]), key=lambda rack: -free[rack])
    if not with_circuits:
        return one_after_another(room, job.workers, [racks[rack] for rack in order])
    for least in (1, 2):  # ports of each rack: two racks, or the leaves of a star, need one
        wired = [racks[rack] for rack in order if room.ports.get(rack, 0) >= least]
        grant = one_after_another(room, job.workers, wired)
        if grant is not None:
            grant = replace(grant, circuits=circuits_of(job, grant, room.cluster))
            if all(count <= room.ports.get(rack, 0) for rack, count in ports_of(grant).items()):
                return grant
    return None


def ports_of(grant: Grant) -> dict[str, int]:
    """Return how many ports of each rack the circuits of a grant take.

    - `grant`: what a job holds.
    """
    found: dict[str, int] = {}
    for rack in (rack for circuit in grant.circuits for rack in circuit):
        found[rack] = found.get(rack, 0) + 1
    return found

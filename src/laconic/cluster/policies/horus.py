"""Horus: jobs share GPUs by how busy each is predicted to keep one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.job import Job
from laconic.cluster.policy import Policy
from laconic.cluster.sharing.turns import Device
from laconic.cluster.state import Arrival, Completion, Event, HostLost, State
from laconic.registry import knob, technique

MEMORY_WEIGHT = 1.3
BEYOND_WEIGHT = 1.6


@dataclass
class Colocations:
    """What is remembered: who waits, and who is where; rates of jobs that were alone; pairs that went badly;
    and when rates are read next."""

    queue: list[int] = field(default_factory=list)
    at: dict[int, tuple[Device, ...]] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    bad: set[frozenset[int]] = field(default_factory=set)
    due: float = 0.0


@technique("horus", paper="Yeung et al., IEEE TPDS 33(1), 2022")
@dataclass(frozen=True)
class Horus(Policy):
    """Each job goes to the GPUs that cost least, by what it is predicted to need (`sharing.utilisation`): a GPU costs
    for the part of its memory in use, for the distance of the summed utilisation from the whole, more when it is
    beyond, and for each job that is there. A GPU whose memory does not suffice, or whose utilisation would pass the
    limit, is not acceptable; who finds too few waits. Several of the queue are looked at, in the order of their
    arrivals, and who finds a place starts.

    Nobody is profiled beforehand. Where a job that ran alone before comes to run much slower than that, whoever came to
    it last is evicted, waits again, and is not put beside it another time.

    The weights of the cost are those of the authors' public simulator, in which, too, a gang is put on as few hosts as
    possible; the limits are ours.
    """

    limit: float = knob(1.0, above=0, doc="summed utilisation up to which jobs share a GPU")
    most: int = knob(2, low=1, doc="jobs on a GPU")
    window: int = knob(5, low=1, doc="waiting jobs that are looked at; 1: the first alone")
    least_speed: float = knob(0.5, low=0, high=1, doc="speed, over that alone, below which a newcomer is evicted")
    read_after: float = knob(60.0, above=0, doc="seconds after which the rates of those who came together are read")

    def init(self) -> Colocations:
        return Colocations()

    def decide(self, state: State, events: Sequence[Event], memory: Colocations) -> tuple[Decision, Colocations]:
        for event in events:
            if isinstance(event, Arrival):
                memory.queue.append(event.job)
            elif isinstance(event, Completion):
                del memory.at[event.job]
                memory.alone.pop(event.job, None)
            elif isinstance(event, HostLost):
                for job in event.jobs:
                    del memory.at[job]
                memory.queue = sorted(event.jobs) + memory.queue
        there = _residents(state, memory)
        self._evict(state, memory, there)
        while any(self._start(state, memory, there, job) for job in memory.queue[: self.window]):
            pass
        grants = {
            job: Grant.of(Slot(*device, 1 / len(there[device])) for device in devices)
            for job, devices in memory.at.items()
        }
        return Decision(grants, memory.due if memory.due > state.now else None), memory

    def cost(self, job: Job, beside: Sequence[Job], memory_bytes: float) -> float | None:
        """Return what a GPU costs a job; None where it is not acceptable.

        - `job`: the job.
        - `beside`: those that are on the GPU.
        - `memory_bytes`: of the GPU.
        """
        used = sum(other.gpu_memory_bytes for other in (*beside, job))
        busy = sum(other.utilisation for other in (*beside, job))
        if len(beside) >= self.most or used > memory_bytes or (beside and busy > self.limit):
            return None
        beyond = busy - 1.0
        return MEMORY_WEIGHT * used / memory_bytes + (BEYOND_WEIGHT * beyond if beyond > 0 else -beyond) + len(beside)

    def _start(self, state: State, memory: Colocations, there: Mapping[Device, list[int]], job: int) -> bool:
        """Put a job on the GPUs that cost least, of the host that costs least or else of all; tell whether."""
        about = state.jobs[job]
        costs: dict[Device, float] = {}
        for device, jobs in there.items():
            host = state.cluster.hosts[device[0]]
            if about.gpu_types and host.gpu not in about.gpu_types:
                continue
            if any(frozenset((job, other)) in memory.bad for other in jobs):
                continue
            cost = self.cost(about, [state.jobs[other] for other in jobs], host.gpu_memory_bytes)
            if cost is not None:
                costs[device] = cost
        if len(costs) < about.workers:
            return False
        cheapest = sorted(costs, key=lambda device: (costs[device], device))
        hosts = {host: [device for device in cheapest if device[0] == host][: about.workers] for host, _ in cheapest}
        whole = [devices for devices in hosts.values() if len(devices) == about.workers]
        devices = min(
            whole, key=lambda devices: (sum(costs[d] for d in devices), devices), default=cheapest[: about.workers]
        )
        memory.queue.remove(job)
        memory.at[job] = tuple(sorted(devices))
        for device in devices:
            there[device].append(job)
            if len(there[device]) > 1:
                memory.due = state.now + self.read_after
        return True

    def _evict(self, state: State, memory: Colocations, there: Mapping[Device, list[int]]) -> None:
        """Read rates, and take those away beside whom somebody runs too slowly."""
        for job in list(memory.at):
            if job not in memory.at or job not in state.running or not state.speed(job) > 0:
                continue
            beside = [other for device in memory.at[job] for other in there[device] if other != job]
            if not beside and not state.running[job].is_shared:
                memory.alone[job] = float(state.speed(job))
            elif beside and state.speed(job) < self.least_speed * memory.alone.get(job, 0.0):
                last = max(beside, key=lambda other: (list(memory.at).index(other), other))
                memory.bad.add(frozenset((job, last)))
                for device in memory.at.pop(last):
                    there[device].remove(last)
                memory.queue = sorted([*memory.queue, last])


def _residents(state: State, memory: Colocations) -> dict[Device, list[int]]:
    """Return who is on each device that is there."""
    there: dict[Device, list[int]] = {
        (number, device): []
        for number, host in enumerate(state.cluster.hosts)
        if number not in state.room.lost
        for device in range(host.gpus)
    }
    for job, devices in memory.at.items():
        for device in devices:
            there[device].append(job)
    return there

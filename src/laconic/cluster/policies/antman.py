"""AntMan: jobs within their tenant's quota run as if alone, and opportunistic ones on what these leave of GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.quotas import quota_of
from laconic.cluster.room import Room
from laconic.cluster.sharing.coordinator import Coordination, Footprint, coordinate, divide
from laconic.cluster.sharing.throughput import Throughput
from laconic.cluster.sharing.turns import Device, Group, Servers, grant_of
from laconic.cluster.state import Arrival, Completion, Event, HostLost, State
from laconic.registry import knob, technique

RESIDENT = 1e-6
"""The share of a job that is on a GPU and may launch nothing."""


@dataclass
class Classes:
    """What is remembered: tenants in the order in which they came; the devices of guaranteed and of opportunistic jobs;
    what coordinators know of guaranteed jobs; and when they measure next."""

    tenants: list[str] = field(default_factory=list)
    guaranteed: dict[int, tuple[Device, ...]] = field(default_factory=dict)
    opportunistic: dict[int, tuple[Device, ...]] = field(default_factory=dict)
    known: dict[int, Coordination] = field(default_factory=dict)
    next: float = 0.0


@technique("antman", paper="Xiao et al., OSDI 2020")
@dataclass(frozen=True)
class AntMan(Policy):
    """Jobs within their tenant's quota are guaranteed: they get whole gangs on few hosts, of GPUs on which nobody else
    is guaranteed, whoever else computes there. All others are opportunistic: they go to the GPUs with the lowest load,
    below thresholds of memory and of multiprocessors in use, and become guaranteed when quota is free.

    On each GPU a coordinator lets opportunistic jobs launch nothing when a guaranteed job comes, and then step by step
    more while its mini-batches take as long as alone (`sharing.coordinator`); among several, by what progresses most.
    What a guaranteed job needs of the memory is taken from opportunistic ones, whose tensors then go to the host: they
    get that much less done of their share.

    The paper's steps and thresholds are not known; those here are round ones. A share is one of the GPU's operator
    stream; jobs whose speed on a share has a knee (`Iterations`) are what it is made for.

    On six parts of Philly's trace, one in twenty of whose jobs is guaranteed on as many GPUs as these need at most,
    they take 1.0001 to 1.0024 times as long as without the others, which fill 57 to 98 % of what is idle. Where one in
    five is, there are too few others to fill more than 17 to 39 %. Where quotas overflow, guaranteed jobs that run as
    opportunistic ones are slowed by these: 1.28 times as long.
    """

    quotas: tuple[int, ...] = knob((), low=0, doc="GPUs of each tenant, in the order of their first jobs; none: equal")
    tolerance: float = knob(0.1, above=0.001, below=1, doc="part by which a mini-batch may take longer")
    interval: float = knob(10.0, above=0, doc="seconds between control steps")
    busy: float = knob(0.9, above=0, high=1, doc="share of multiprocessors in use from which a GPU takes nobody more")
    filled: float = knob(1.0, above=0, high=1, doc="share of a GPU's memory that may be in use with a newcomer")
    paging: float = knob(20.0, low=1, doc="how much slower a job is whose tensors are all in the host's memory")

    def init(self) -> Classes:
        return Classes()

    def decide(self, state: State, events: Sequence[Event], memory: Classes) -> tuple[Decision, Classes]:
        for event in events:
            if isinstance(event, Arrival) and state.jobs[event.job].tenant not in memory.tenants:
                memory.tenants.append(state.jobs[event.job].tenant)
            elif isinstance(event, Completion):
                _forget(memory, [event.job])
            elif isinstance(event, HostLost):
                _forget(memory, event.jobs)
        self._guarantee(state, memory)
        self._fill(state, memory)
        is_settled = self._control(state, memory)
        grants = self._grants(state, memory)
        if is_settled:
            return Decision(grants), memory
        if memory.next <= state.now:
            memory.next = state.now + self.interval
        return Decision(grants, memory.next), memory

    def _guarantee(self, state: State, memory: Classes) -> None:
        """Guarantee devices to those within their quotas, in the order of arrivals; opportunistic jobs are promoted."""
        held = dict.fromkeys(memory.tenants, 0)
        for job in memory.guaranteed:
            held[state.jobs[job].tenant] += state.jobs[job].workers
        free: Room | None = None
        for job in state.active:
            about = state.jobs[job]
            quota = quota_of(self.quotas, state.cluster.gpus, memory.tenants, about.tenant)
            if job in memory.guaranteed or held[about.tenant] + about.workers > quota:
                continue
            if free is None:
                taken = [Group(devices) for devices in memory.guaranteed.values()]
                free = Servers(state.cluster, taken, state.room.lost).room()
            at = memory.opportunistic.get(job, ())
            if not at or any(free.free[device] < 1 for device in at):
                found = consolidated(free, about.workers)
                if found is None:
                    continue
                at = found.devices
            memory.opportunistic.pop(job, None)
            memory.guaranteed[job] = at
            memory.known[job] = Coordination()
            free.take(about, grant_of(at))
            held[about.tenant] += about.workers

    def _fill(self, state: State, memory: Classes) -> None:
        """Place opportunistic jobs that wait, each on the GPUs with the lowest load."""
        load: dict[Device, float] = {}
        used: dict[Device, float] = {}
        for number, host in enumerate(state.cluster.hosts):
            if number not in state.room.lost:
                load.update({(number, device): 0.0 for device in range(host.gpus)})
        used.update(load)
        for job, devices in (*memory.guaranteed.items(), *memory.opportunistic.items()):
            for device in devices:
                load[device] += state.jobs[job].utilisation
                used[device] += state.jobs[job].gpu_memory_bytes
        for job in state.active:
            if job in memory.guaranteed or job in memory.opportunistic:
                continue
            if min(load.values(), default=1.0) >= self.busy:
                break
            about = state.jobs[job]
            light = [device for device, share in load.items() if share < self.busy]
            light = [device for device in light if used[device] + about.gpu_memory_bytes <= self._space(state, device)]
            if len(light) >= about.workers:
                at = tuple(sorted(sorted(light, key=lambda device: (load[device], device))[: about.workers]))
                memory.opportunistic[job] = at
                for device in at:
                    load[device] += about.utilisation
                    used[device] += about.gpu_memory_bytes

    def _space(self, state: State, device: Device) -> float:
        return self.filled * state.cluster.hosts[device[0]].gpu_memory_bytes

    def _control(self, state: State, memory: Classes) -> bool:
        """Let coordinators of guaranteed jobs take a step, where it is time; tell whether all have settled."""
        shared = {device for devices in memory.opportunistic.values() for device in devices}
        is_time, is_settled = state.now >= memory.next - 1e-9, True
        for job, devices in memory.guaranteed.items():
            if shared.isdisjoint(devices):
                continue
            known = memory.known[job]
            if is_time and job in state.running and state.speed(job) > 0:
                used = 1 - min(slot.share for slot in state.running[job].slots)
                after = coordinate(known, 1 / float(state.speed(job)), self.tolerance)
                if after.allowed <= known.allowed or not known.solo or used >= known.allowed - 1e-3:
                    memory.known[job] = after  # more than others can use need not be tried
                    is_settled = is_settled and after == known
            else:
                is_settled = is_settled and known.solo > 0 and not known.raised
        return is_settled

    def _grants(self, state: State, memory: Classes) -> dict[int, Grant]:
        """Return the shares of all: of opportunistic jobs what each may launch, of guaranteed ones the rest."""
        owner = {device: job for job, devices in memory.guaranteed.items() for device in devices}
        there: dict[Device, list[int]] = {}
        for job, devices in memory.opportunistic.items():
            for device in devices:
                there.setdefault(device, []).append(job)
        most: dict[int, float] = {}
        for device, jobs in there.items():
            guaranteed = owner.get(device)
            allowed = memory.known[guaranteed].allowed if guaranteed is not None else 1.0
            profiles = [Throughput.knee(max(state.jobs[job].utilisation, 1e-3)) for job in jobs]
            space = state.cluster.hosts[device[0]].gpu_memory_bytes
            if guaranteed is not None:
                space -= state.jobs[guaranteed].gpu_memory_bytes
            for job, share in zip(jobs, divide(allowed, profiles), strict=True):
                footprint = Footprint(state.jobs[job].gpu_memory_bytes).within(space)
                space -= footprint.on_gpu
                share *= footprint.speed(self.paging)
                most[job] = min(most.get(job, 1.0), max(share - len(jobs) * RESIDENT, RESIDENT))
        grants = {job: grant_of(devices, most[job]) for job, devices in memory.opportunistic.items()}
        for job, devices in memory.guaranteed.items():
            grants[job] = Grant.of(
                Slot(*device, 1.0 - sum(most[other] for other in there.get(device, ()))) for device in devices
            )
        return grants


def _forget(memory: Classes, jobs: Iterable[int]) -> None:
    for job in jobs:
        for notes in (memory.guaranteed, memory.opportunistic, memory.known):
            notes.pop(job, None)

"""Amaral and others: a job's graph and that of the machines are split in two again and again, and mapped so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.bipartition import bipartition
from laconic.cluster.coupled import Coupled
from laconic.cluster.decision import Decision
from laconic.cluster.gpu_distance import Device, distance, halves, path
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.job import Job
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique


@technique("amaral_topo", paper="Amaral, Polo, Carrera, Seelam, Steinder, SC 2017")
@dataclass(frozen=True)
class AmaralTopo(Policy):
    """The utility of a mapping weighs three costs: how far messages go, how much this job and those on the same
    machines slow each other down, and how many free GPUs are left below a switch that is partly in use.

    Jobs wait in the order of their arrivals. Every machine that can hold a job alone is tried, and all together where
    none can. Postponing, a job whose best utility is below what its owner asks for waits, and others pass, as long as
    anything runs; otherwise it is placed at once. Nothing is preempted.

    Signs and normalisation of the terms are a reading: distances count between the nearest and the farthest of the
    cluster, slow-downs are means over the jobs concerned, and free GPUs are counted on the machines that are used.
    """

    postpone: bool = knob(True, doc="whether jobs wait for the utility that they ask for")
    bound_from: float = knob(0.2, low=0, high=1, doc="share of time in messages from which a job counts as bound by it")
    communicating: tuple[float, ...] = knob((0.5, 0.3, 0.2), low=0, doc="weights of the three costs for such a job")
    computing: tuple[float, ...] = knob((0.1, 0.5, 0.4), low=0, doc="the same for others")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        room, running, start = state.room.copy(), dict(state.running), dict[int, Grant]()
        for number in state.waiting:
            job = state.jobs[number]
            if job.workers > room.gpus:
                break
            beside = [(state.jobs[other], grant) for other, grant in running.items()]
            utility, grant = self.best(job, room, beside)
            asked = job.progress.least_utility if isinstance(job.progress, Coupled) else 0.0
            if self.postpone and utility < asked and running:
                continue
            room.take(job, grant)
            running[number] = start[number] = grant
        return Decision.changing(state.running, start), memory

    def best(self, job: Job, room: Room, beside: Sequence[tuple[Job, Grant]]) -> tuple[float, Grant]:
        """Return the best mapping that is found and its utility; enough GPUs are free.

        - `job`: who is placed.
        - `room`: what is free.
        - `beside`: the running jobs with what they hold.
        """
        free = [(host, device) for host, device in np.argwhere(room.free >= ALMOST).tolist()]
        alone = [[at for at in free if at[0] == host] for host in np.flatnonzero(room.whole >= job.workers).tolist()]
        tried = [
            mapped(job, places, room, lambda grant: self.utility(job, grant, room, beside))
            for places in alone or [free]
        ]
        values = [self.utility(job, grant, room, beside) for grant in tried]
        return max(values), tried[int(np.argmax(values))]

    def utility(self, job: Job, grant: Grant, room: Room, beside: Sequence[tuple[Job, Grant]]) -> float:
        """Return the utility of a mapping, from 0 to 1.

        - `job`: who is placed.
        - `grant`: where its workers go, in their order.
        - `room`: what is free before.
        - `beside`: the running jobs with what they hold.
        """
        progress = job.progress if isinstance(job.progress, Coupled) else Coupled(job.progress.work)
        hosts = {host for host, _ in grant.by_host}
        near = [(other, held) for other, held in beside if hosts.intersection(host for host, _ in held.by_host)]
        tolls = [progress.slowdown([other for other, _ in near])]
        tolls += [other.progress.slowdown([job]) for other, _ in near if isinstance(other.progress, Coupled)]
        farthest = _farthest(room)
        far = (progress.mean_distance(grant, room.cluster) - 1) / (farthest - 1) if farthest > 1 else 0.0
        costs = (far, min(sum(tolls) / len(tolls), 1.0), _stranded(grant, room, hosts))
        weights = self.communicating if progress.messages >= self.bound_from else self.computing
        return 1 - sum(weight * cost for weight, cost in zip(weights, costs, strict=True)) / sum(weights)


def mapped(job: Job, places: Sequence[Device], room: Room, utility: Callable[[Grant], float]) -> Grant:
    """Return where the workers of a job go by dual recursive bipartitioning: GPUs are split in two by the topology, the
    workers by a cut of little weight, for every size that fits; the split whose workers, as near each other as they can
    be on each side, have the largest utility is taken, and each side is split again.

    - `job`: who is placed.
    - `places`: free GPUs, as many as it has workers or more.
    - `room`: what is free.
    - `utility`: of a mapping.
    """
    count, cluster = job.workers, room.cluster
    progress = job.progress if isinstance(job.progress, Coupled) else Coupled(job.progress.work)
    weights = progress.weights(count)
    at: dict[int, Device] = {}

    def compact(some: Sequence[Device], wanted: int) -> list[Device]:
        if wanted == len(some) or len(some) == 1:
            return list(some[:wanted])
        parts = sorted(halves(cluster, some), key=len)
        for part in parts:
            if len(part) >= wanted:
                return compact(part, wanted)
        return parts[1] + compact(parts[0], wanted - len(parts[1]))

    def put(workers: list[int], some: Sequence[Device], others: dict[int, Device]) -> None:
        if len(some) == 1 or not workers:
            at.update(dict(zip(workers, some, strict=False)))
            return
        best, chosen = -np.inf, None
        first, second = halves(cluster, some)
        for size in range(max(0, len(workers) - len(second)), min(len(workers), len(first)) + 1):
            for mine in _cuts(weights, workers, size):
                sides = (mine, [worker for worker in workers if worker not in mine])
                guess = dict(others)
                for part, side in zip(sides, (first, second), strict=True):
                    guess.update(zip(part, compact(side, len(part)) if part else (), strict=True))
                value = utility(_grant(guess))
                if value > best + 1e-12:
                    best, chosen = value, (sides, guess)
        assert chosen is not None  # as many GPUs as workers are there
        (ours, theirs), guess = chosen
        put(ours, first, {**others, **{worker: guess[worker] for worker in theirs}})
        put(theirs, second, {**others, **{worker: at[worker] for worker in ours}})

    put(list(range(count)), list(places), {})
    return _grant(at)


def _cuts(weights: NDArray[np.float64], workers: list[int], size: int) -> list[list[int]]:
    """Return the workers of the first side for each cut that is tried: what is found from either end of the list, and
    the other side where both are equally large."""
    cuts = [bipartition(weights, order, size) for order in (workers, workers[::-1])]
    sides = [sorted(side) for one, other in cuts for side in (one, other) if len(side) == size]
    return [side for number, side in enumerate(sides) if side not in sides[:number]]


def _grant(at: dict[int, Device]) -> Grant:
    return Grant(tuple(Slot(*at[worker]) for worker in sorted(at)))


def _farthest(room: Room) -> float:
    cluster = room.cluster
    last = [(number, host.gpus - 1) for number, host in enumerate(cluster.hosts)]
    ends = [(0, 0), *((number, 0) for number in range(len(cluster.hosts)))]
    return max(distance(cluster, one, other) for one in ends[:1] for other in (*last, *ends))


def _stranded(grant: Grant, room: Room, hosts: set[int]) -> float:
    """Return the share of the GPUs that stay free on some hosts whose switch has others that are in use."""
    cluster, taken = room.cluster, {(slot.host, slot.device) for slot in grant.slots}
    groups: dict[tuple[object, ...], list[bool]] = {}
    for host in sorted(hosts):
        for device in range(cluster.hosts[host].gpus):
            free = room.free[host, device] >= ALMOST and (host, device) not in taken
            groups.setdefault(path(cluster, (host, device))[:-1], []).append(bool(free))
    left = sum(map(sum, groups.values()))
    return sum(sum(group) for group in groups.values() if not all(group)) / left if left else 0.0

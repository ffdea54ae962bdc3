"""Liquid: jobs go where their estimated traffic has the shortest ways, each by itself or a window of them together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.job import Job
from laconic.cluster.placement import consolidated, one_after_another
from laconic.cluster.policy import Policy
from laconic.cluster.racks import racks_of
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.sending import Sending
from laconic.cluster.state import Event, State
from laconic.registry import knob, technique

SLACK = 1e-9  # of sums


@technique("liquid", paper="Gu, Chen, Liu, Dai, Chen, Zhang, Che, Huang, IEEE TPDS 33(11), 2022")
@dataclass(frozen=True)
class Liquid(Policy):
    """A placement costs the bytes of an iteration times the links that they pass: none on one host, few within a rack,
    more across racks. Of those that no GPU, no GPU's memory and no link forbids, by what the jobs are estimated to
    need, the cheapest is taken, and of equals the one that leaves the least of its GPUs, and then of its hosts, free.

    At once, jobs are placed in the order of their arrivals, and those that fit nowhere are passed over. With a window,
    jobs are held until it ends, and whenever something is free all that wait are placed together: an annealed search
    over orders for the most GPUs in use, then for the most jobs, and then for the least cost. Several jobs may share a
    GPU. Nothing is preempted.

    Jobs ask for what `laconic.cluster.resource_needs` estimates (`asking_for`). A job's demand of a link is what it
    sends alone, so that at most one fills it. Only the paper's abstract is known: the regression, the cost and the
    search are a reading; sending data and images ahead is a smaller cost of starting (`Costs.start`). On eight traces
    of jobs that are submitted in batches, windows took 0.89 to 1.01 of the time; where jobs come singly, each waits for
    the end of its window, too.
    """

    window: float = knob(0.0, low=0, doc="seconds for which jobs are collected; 0: each is placed when it arrives")
    tries: int = knob(60, low=0, doc="orders that the search of a window tries")
    seed: int = knob(0, low=0, doc="of that search")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        waiting, wake = state.waiting, None
        if self.window:
            ends = {job: math.ceil(state.jobs[job].arrival / self.window) * self.window for job in waiting}
            wake = min((end for end in ends.values() if end > state.now), default=None)
            waiting = [job for job in waiting if ends[job] <= state.now]
        usage = Usage(state)
        plan = _placed(state, waiting, usage)
        if self.window and plan.start:
            plan = self._search(state, waiting, plan, usage)
        return Decision.changing(state.running, plan.start, wake=wake), memory

    def _search(self, state: State, waiting: list[int], first: _Plan, usage: Usage) -> _Plan:
        """Return the best plan of many orders, begun with that of arrivals."""
        draws = np.random.default_rng((self.seed, waiting[0], len(waiting)))
        best = current = first
        order, heat = list(waiting), max(first.cost, 1.0)
        for step in range(self.tries):
            if best.cost == 0 and len(best.start) == len(waiting):
                break
            trial = list(order)
            one, other = draws.integers(len(trial), size=2).tolist()
            trial[one], trial[other] = trial[other], trial[one]
            plan = _placed(state, trial, usage)
            worse = (plan.value(heat) - current.value(heat)) / heat
            if worse <= 0 or draws.random() < math.exp(-10 * worse * (step + 1) / self.tries):
                order, current = trial, plan
            if (plan.gpus, len(plan.start), -plan.cost) > (best.gpus, len(best.start), -best.cost):
                best = plan
        return best


class _Plan:
    """Jobs that start, where, and what their traffic costs."""

    def __init__(self) -> None:
        self.start: dict[int, Grant] = {}
        self.cost = 0.0

    @property
    def gpus(self) -> float:
        """What the jobs that start use."""
        return sum(grant.gpus for grant in self.start.values())

    def value(self, heat: float) -> float:
        """What is to be small: the cost, from which every GPU that is used takes more than any cost is."""
        return self.cost - 10 * heat * self.gpus


class Usage:
    """What running jobs are estimated to take of links and of the memory of GPUs, beside the devices themselves.

    - `state`: the cluster now.
    """

    def __init__(self, state: State) -> None:
        self.cluster, self.room = state.cluster, state.room.copy()
        network = state.cluster.network
        self.capacity = np.zeros(0) if network is None else network.capacities
        self.links = np.zeros(len(self.capacity))
        self.memory: dict[tuple[int, int], float] = {}
        for number, grant in state.running.items():
            self._add(state.jobs[number], grant)

    def copy(self) -> Usage:
        """Return the same usage to try things out on."""
        other = object.__new__(Usage)
        other.cluster, other.room, other.capacity = self.cluster, self.room.copy(), self.capacity
        other.links, other.memory = self.links.copy(), dict(self.memory)
        return other

    def take(self, job: Job, grant: Grant) -> None:
        """Add a job.

        - `job`: who is placed.
        - `grant`: where.
        """
        self.room.take(job, grant)
        self._add(job, grant)

    def fits(self, job: Job, grant: Grant) -> bool:
        """Tell whether no link, no GPU's memory and no host's cores and memory are exceeded.

        - `job`: who is placed.
        - `grant`: where; its devices are free.
        """
        hosts = self.cluster.hosts
        for host, device, _ in grant.slots:
            if self.memory.get((host, device), 0.0) + job.gpu_memory_bytes > hosts[host].gpu_memory_bytes:
                return False
        for host, count in grant.by_host:
            part = count / len(grant.slots)
            if (
                part * job.cpu_milli > self.room.cpu_milli[host] + SLACK
                or part * job.memory_mib > self.room.memory_mib[host] + SLACK
            ):
                return False
        return bool(np.all(self.links + self._demand(job, grant) <= self.capacity * (1 + SLACK)))

    def _add(self, job: Job, grant: Grant) -> None:
        self.links += self._demand(job, grant)
        for host, device, _ in grant.slots:
            self.memory[host, device] = self.memory.get((host, device), 0.0) + job.gpu_memory_bytes

    def _demand(self, job: Job, grant: Grant) -> NDArray[np.float64]:
        """Return the bytes a second that a job sends over each link, alone."""
        if not isinstance(job.progress, Sending) or len(grant.by_host) == 1:
            return np.zeros(len(self.capacity))
        return job.progress.loads(grant, self.cluster) / sum(job.progress.seconds(grant, self.cluster))


def _placed(state: State, order: Sequence[int], usage: Usage) -> _Plan:
    """Place jobs one after another, each as cheaply as it can be."""
    usage, plan = usage.copy(), _Plan()
    for number in order:
        job = state.jobs[number]
        if job.share >= 1 and job.workers > usage.room.gpus:
            continue
        best: tuple[float, float, float, int] | None = None
        for place, grant in enumerate(candidates(usage.room, job)):
            if not usage.fits(job, grant):
                continue
            cost = float(job.progress.loads(grant, state.cluster).sum()) if isinstance(job.progress, Sending) else 0.0
            free = usage.room.free
            pieces = float(sum(free[slot.host, slot.device] - slot.share for slot in grant.slots))
            left = float(sum(free[host].sum() for host, _ in grant.by_host)) - grant.gpus
            if best is None or (cost, pieces, left, place) < best:
                best, chosen = (cost, pieces, left, place), grant
        if best is not None:
            usage.take(job, chosen)
            plan.start[number] = chosen
            plan.cost += best[0]
    return plan


def candidates(room: Room, job: Job) -> Iterator[Grant]:
    """Yield placements whose devices are free: every device for a job that needs a part of one; for a gang every host
    that holds it, else the fewest hosts of every rack that does, else every rack filled first, with the rest in others.

    - `room`: what is free.
    - `job`: who is placed.
    """
    suits = [not job.gpu_types or host.gpu in job.gpu_types for host in room.cluster.hosts]
    if job.share < 1:
        fitting = np.argwhere(room.free >= job.share - SLACK).tolist()
        yield from (Grant((Slot(host, device, job.share),)) for host, device in fitting if suits[host])
        return
    whole = [host for host in np.flatnonzero(room.whole >= job.workers).tolist() if suits[host]]
    if whole:
        for host in whole:
            free = np.flatnonzero(room.free[host] >= ALMOST)[: job.workers].tolist()
            yield Grant(tuple(Slot(host, device) for device in free))
        return
    racks = [[host for host in hosts if suits[host]] for hosts in racks_of(room.cluster.hosts).values()]
    within = [hosts for hosts in racks if room.whole[hosts].sum() >= job.workers]
    for hosts in within:
        if (grant := consolidated(room.only(hosts), job.workers)) is not None:
            yield grant
    if not within:
        for first in racks:
            rest = sorted((hosts for hosts in racks if hosts is not first), key=lambda h: -int(room.whole[h].sum()))
            if (grant := one_after_another(room, job.workers, [first, *rest])) is not None:
                yield Grant.of(grant.slots)

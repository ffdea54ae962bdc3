"""Hydra: a plan of jobs on GPUs of several types by branch and bound, with a price on being late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST
from laconic.cluster.state import Completion, Event, State
from laconic.registry import knob, technique


class Task(NamedTuple):
    """A job to be planned.

    - `arrival`, `deadline`: in seconds.
    - `seconds`: on each type of GPU; infinite where it cannot run.
    """

    arrival: float
    deadline: float
    seconds: tuple[float, ...]


class Plan(NamedTuple):
    """Jobs in the order in which they take the GPU of a type that is free first.

    - `cost`: completion times and priced tardiness.
    - `steps`: pairs of a task's place in the list and a type.
    """

    cost: float
    steps: tuple[tuple[int, int], ...]


@technique("hydra", paper="Yang et al., IEEE Transactions on Computers 72(8), 2023")
@dataclass(frozen=True)
class Hydra(Policy):
    """At every arrival and end the most urgent jobs of the queue are planned anew: which job is next, on which type of
    GPU. The cost of a plan is the sum of completion times and a price times that of tardiness; a branch is left when
    what it has cost, with every other job started as soon as it could be where it costs least, is not below the best
    plan so far, which is a greedy one at first. What runs is not preempted.

    The price rises with what is late: it is `penalty` times one plus total tardiness over total completion time, of the
    jobs that are done and of those that wait, as they would be if they started now. The paper's formula, its window and
    its rules for leaving branches were not at hand; this is a reading of its abstract. Jobs take one GPU each.
    """

    penalty: float = knob(1.0, low=0, doc="the price of a second of tardiness when nothing is late")
    window: int = knob(8, low=1, doc="jobs that are planned together")
    limit: int = knob(2000, low=0, doc="branches after which the best plan so far is taken; 0: no limit")

    def init(self) -> tuple[float, float]:
        return 0.0, 0.0

    def decide(
        self, state: State, events: Sequence[Event], memory: tuple[float, float]
    ) -> tuple[Decision, tuple[float, float]]:
        late, took = memory
        for event in events:
            if isinstance(event, Completion):
                job = state.jobs[event.job]
                late, took = late + max(state.now - job.deadline, 0.0), took + state.now - job.arrival
        waiting = state.waiting
        if not waiting or not state.room.gpus:
            return Decision.changing(state.running, {}), (late, took)
        types = sorted({host.gpu for host in state.cluster.hosts})
        tasks = {job: self._task(state, job, types) for job in waiting}
        free = self._free_times(state, types)
        now_late = sum(max(state.now + min(task.seconds) - task.deadline, 0.0) for task in tasks.values())
        now_took = sum(state.now + min(task.seconds) - task.arrival for task in tasks.values())
        price = self.penalty * (1 + (late + now_late) / (took + now_took))
        chosen = sorted(waiting, key=lambda job: (_urgency(tasks[job], state.now, price), job))[: self.window]
        plan = best_plan([tasks[job] for job in chosen], free, state.now, price, self.limit)
        return Decision.changing(state.running, self._starts(state, chosen, plan, types)), (late, took)

    def _task(self, state: State, job: int, types: Sequence[str]) -> Task:
        """Return what a job takes on a GPU of each type."""
        about, seconds = state.jobs[job], list[float]()
        for kind in types:
            host = next(number for number, host in enumerate(state.cluster.hosts) if host.gpu == kind)
            speed = about.progress.rate(float(state.done(job)), Grant((Slot(host, 0),)), state.cluster, ()).speed
            allowed = speed > 0 and (not about.gpu_types or kind in about.gpu_types)
            seconds.append(state.remaining(job).value / speed if allowed else math.inf)
        return Task(about.arrival, about.deadline, tuple(seconds))

    def _free_times(self, state: State, types: Sequence[str]) -> list[list[float]]:
        """Return when each GPU of each type is free, by what is expected of the jobs that run."""
        free: list[list[float]] = [[] for _ in types]
        for host, about in enumerate(state.cluster.hosts):
            if host not in state.room.lost:
                free[types.index(about.gpu)] += [state.now] * int(state.room.whole[host])
        for job, grant in state.running.items():
            kind = state.cluster.hosts[grant.slots[0].host].gpu
            speed = state.jobs[job].progress.rate(float(state.done(job)), grant, state.cluster, ()).speed
            free[types.index(kind)].append(state.now + state.remaining(job).value / speed)
        return [sorted(times) for times in free]

    def _starts(self, state: State, chosen: Sequence[int], plan: Plan, types: Sequence[str]) -> dict[int, Grant]:
        """Return the jobs of a plan that begin now: those for whose step a GPU of its type is idle."""
        room, start, busy = state.room.copy(), dict[int, Grant](), set[int]()
        for place, kind in plan.steps:
            hosts = [h for h, host in enumerate(state.cluster.hosts) if host.gpu == types[kind] and room.whole[h]]
            if kind in busy or not hosts:
                busy.add(kind)
                continue
            host = min(hosts, key=lambda h: (room.whole[h], h))
            grant = Grant((Slot(host, int((room.free[host] >= ALMOST).argmax())),))
            room.take(state.jobs[chosen[place]], grant)
            start[chosen[place]] = grant
        return start


def best_plan(tasks: Sequence[Task], free: Sequence[Sequence[float]], now: float, price: float, limit: int = 0) -> Plan:
    """Return the plan of least cost.

    - `tasks`: what is to be planned.
    - `free`: when each GPU of each type is free.
    - `now`: the time.
    - `price`: of a second of tardiness.
    - `limit`: branches after which the best so far is taken; 0: none, and the plan is optimal.
    """
    search = _Search(tasks, price, limit)
    state = tuple(tuple(sorted(max(time, now) for time in times)) for times in free)
    search.best = search.greedy(state, range(len(tasks)))
    search.branch(state, tuple(range(len(tasks))), 0.0, ())
    return search.best


class _Search:
    def __init__(self, tasks: Sequence[Task], price: float, limit: int) -> None:
        self.tasks, self.price, self.limit = tasks, price, limit
        self.best, self.branches = Plan(math.inf, ()), 0

    def cost(self, task: Task, end: float) -> float:
        return end - task.arrival + self.price * max(end - task.deadline, 0.0)

    def options(self, free: tuple[tuple[float, ...], ...], left: Sequence[int]) -> list[tuple[float, int, int]]:
        """Return what each task would cost if it were next, on each type."""
        return [
            (self.cost(self.tasks[task], times[0] + seconds), task, kind)
            for task in left
            for kind, (times, seconds) in enumerate(zip(free, self.tasks[task].seconds, strict=True))
            if times and seconds < math.inf
        ]

    def greedy(self, free: tuple[tuple[float, ...], ...], left: Sequence[int]) -> Plan:
        """Return a plan in order of urgency, each task where it costs least."""
        total, steps = 0.0, list[tuple[int, int]]()
        for task in sorted(left, key=lambda task: (_urgency(self.tasks[task], 0.0, self.price), task)):
            if options := self.options(free, [task]):
                cost, _, kind = min(options)
                total, steps = total + cost, [*steps, (task, kind)]
                free = _after(free, kind, self.tasks[task].seconds[kind])
        return Plan(total, tuple(steps))

    def branch(
        self,
        free: tuple[tuple[float, ...], ...],
        left: tuple[int, ...],
        spent: float,
        steps: tuple[tuple[int, int], ...],
    ) -> None:
        options = self.options(free, left)
        if not options:
            if spent < self.best.cost and len(steps) >= len(self.best.steps):
                self.best = Plan(spent, steps)
            return
        soonest: dict[int, float] = {}
        for cost, task, _ in options:
            soonest[task] = min(soonest.get(task, math.inf), cost)
        if spent + sum(soonest.values()) >= self.best.cost:
            return
        for cost, task, kind in sorted(options):
            self.branches += 1
            if self.limit and self.branches > self.limit:
                return
            after = _after(free, kind, self.tasks[task].seconds[kind])
            self.branch(after, tuple(x for x in left if x != task), spent + cost, (*steps, (task, kind)))


def _after(free: tuple[tuple[float, ...], ...], kind: int, seconds: float) -> tuple[tuple[float, ...], ...]:
    """Return when GPUs are free once the first one of a type has done a task."""
    times = tuple(sorted((free[kind][0] + seconds, *free[kind][1:])))
    return (*free[:kind], times, *free[kind + 1 :])


def _urgency(task: Task, now: float, price: float) -> float:
    """Return the time a job takes, less where it is about to be late: the order of greedy plans and of the window."""
    seconds = min(task.seconds)
    slack = max(task.deadline - now - seconds, 0.0)
    return seconds / (1 + price * math.exp(-slack / max(seconds, 1e-9)))

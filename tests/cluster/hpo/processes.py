"""Trials trained by real processes, one for each device, as a policy decides. Time is counted in rounds, in each of
which every device computes at most one micro-batch, loaded in an earlier round: it does not depend on what else this
machine does."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np

from laconic.cluster.decision import check, diff
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.hpo.trial import Training
from laconic.cluster.job import Job
from laconic.cluster.policy import Policy
from laconic.cluster.room import Room
from laconic.cluster.state import Advanced, Arrival, Completion, Estimate, Event, State, Tables

MICRO = 8  # samples that a device computes in a round


@dataclass
class Trial:
    """A regression by stochastic gradients: its rate, the micro-batches of a step, and where it is."""

    rate: float
    parts: int
    weights: np.ndarray
    step: int = 0


def data(step: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng((step, part))
    x = draws.normal(size=(MICRO, 12))
    return x, x @ np.linspace(-1, 1, 12) + 0.1 * draws.normal(size=MICRO)


def loss_of(weights: np.ndarray) -> float:
    batches = [data(10_000, part) for part in range(16)]
    return float(np.mean([((x @ weights - y) ** 2).mean() for x, y in batches]))


def device(pipe: Connection) -> None:
    """Compute gradients until there are no more to compute."""
    while (asked := pipe.recv()) is not None:
        weights, x, y = asked
        pipe.send(2 / MICRO * x.T @ (x @ weights - y))


def store(pipe: Connection) -> None:
    """Hand out data until nobody wants any."""
    while (asked := pipe.recv()) is not None:
        pipe.send(data(*asked))


class Processes:
    """Devices that compute, and a store that they load their data from."""

    def __init__(self, devices: int) -> None:
        start = mp.get_context("spawn")
        pairs = [start.Pipe() for _ in range(devices + 1)]
        *self.devices, self.store = [mine for mine, _ in pairs]
        targets = [*[device] * devices, store]
        self._all = [
            start.Process(target=target, args=(theirs,), daemon=True)
            for target, (_, theirs) in zip(targets, pairs, strict=True)
        ]
        for process in self._all:
            process.start()

    def close(self) -> None:
        for pipe, process in zip((*self.devices, self.store), self._all, strict=True):
            pipe.send(None)
            process.join(60)


@dataclass
class Group:
    """Trials that are trained together: in each round a device computes a micro-batch that has been loaded in an
    earlier one, whose trial is entitled to it most by its share, and the other trials that it has load theirs."""

    trials: Sequence[Trial]
    processes: Processes
    running: dict[int, Grant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = [list(range(trial.parts)) for trial in self.trials]  # of the step, that nobody has taken
        self.loaded: dict[tuple[int, int], tuple[int, np.ndarray, np.ndarray]] = {}
        self.gradients: list[dict[int, np.ndarray]] = [{} for _ in self.trials]
        self.passed = np.zeros(len(self.trials))

    def give(self, running: dict[int, Grant]) -> None:
        """Let trials go on with other devices; what they had loaded for those that they lose is loaded again."""
        self.running = running
        for job, number in list(self.loaded):
            if job not in running or all(slot.device != number for slot in running[job].slots):
                self.parts[job] = sorted([*self.parts[job], self.loaded.pop((job, number))[0]])

    def round(self) -> dict[int, int]:
        """Compute for a round, and return how many micro-batches each trial got."""
        at: dict[int, dict[int, float]] = {}
        for job, grant in self.running.items():
            for slot in grant.slots:
                at.setdefault(slot.device, {})[job] = slot.share
        computing: list[tuple[int, int, int]] = []
        for number, there in sorted(at.items()):
            if ready := [job for job in there if (job, number) in self.loaded]:
                job = min(ready, key=lambda job: (self.passed[job], job))
                self.passed[job] += 1 / there[job]
                part, x, y = self.loaded[job, number]
                self.processes.devices[number].send((self.trials[job].weights, x, y))
                computing.append((number, job, part))
        for number, there in sorted(at.items()):
            for job in there:
                if (job, number) not in self.loaded and self.parts[job]:
                    part = self.parts[job].pop(0)
                    self.processes.store.send((self.trials[job].step, part))
                    self.loaded[job, number] = part, *self.processes.store.recv()
        done: dict[int, int] = {}
        for number, job, part in computing:
            self.gradients[job][part] = self.processes.devices[number].recv()
            del self.loaded[job, number]
            done[job] = done.get(job, 0) + 1
        return done

    def step(self, job: int) -> bool:
        """Take a trial's step if all of its micro-batches are computed, and tell whether they were."""
        trial, found = self.trials[job], self.gradients[job]
        if len(found) < trial.parts:
            return False
        mean = np.mean([found[part] for part in range(trial.parts)], axis=0)
        trial.weights, trial.step = trial.weights - trial.rate * mean, trial.step + 1
        self.parts[job], self.gradients[job] = list(range(trial.parts)), {}
        return True


def train(trials: Sequence[Trial], steps: int, policy: Policy, processes: Processes) -> tuple[int, int]:
    """Train a group for some steps more; return the rounds that it took, and the most devices that a trial had."""
    count = len(processes.devices)
    cluster, group = Cluster.uniform(1, count), Group(trials, processes)
    jobs = [
        Job(f"trial{i}", 0.0, 1, Training(float(steps * t.parts)), least=1, most=count) for i, t in enumerate(trials)
    ]
    until = [trial.step + steps for trial in trials]
    room, tables, memory = Room(cluster), Tables(len(jobs)), policy.init()
    active, now, widest = dict.fromkeys(range(len(jobs))), 0, 0
    estimates = [Estimate(job.progress.work, "true", 0.0) for job in jobs]
    events: list[Event] = [Arrival(job) for job in active]
    while active:
        if events:
            state = State(now, cluster, jobs, active.keys(), group.running, room, estimates, tables)
            decision, memory = policy.decide(state, events, memory)
            check(diff(group.running, decision), group.running, jobs, room)
            for job, grant in group.running.items():
                room.give(jobs[job], grant)
            group.give(dict(decision.grants))
            for job, grant in group.running.items():
                room.take(jobs[job], grant)
            widest = max(widest, *(len(grant.slots) for grant in group.running.values()))
            events = []
        done = group.round()
        now += 1
        tables.since[:] = now
        tables.executed[list(group.running)] += 1
        for job, parts in sorted(done.items()):
            tables.base[job] += parts
            if group.step(job):
                events.append(Completion(job) if trials[job].step == until[job] else Advanced(job))
            tables.speed[job] = tables.base[job] / tables.executed[job]
        for event in events:
            if isinstance(event, Completion):
                room.give(jobs[event.job], group.running.pop(event.job))
                del active[event.job]
    return now, widest

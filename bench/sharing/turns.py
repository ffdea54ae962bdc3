"""Iterations as slices: trainings that are resident in one process, and Salus's policy that says whose is next."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from bench.sharing.models import Training, synchronize
from bench.sharing.rows import Rows, spread

from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.policies.salus import Salus
from laconic.cluster.room import Room
from laconic.cluster.sharing.iterations import Iterations
from laconic.cluster.state import Advanced, Arrival, Estimate, Event, State, Tables


class Resident:
    """A training on a stream of its own, with what it keeps of the GPU's memory and what a step needs beside that."""

    def __init__(self, kind: str, device: str, small: bool) -> None:
        gpu = device == "cuda"
        before = torch.cuda.memory_allocated() if gpu else 0
        self.kind = kind
        self.stream = torch.cuda.Stream() if gpu else None
        self.training = self._on_stream(lambda: Training(kind, device, small))
        self.persistent = float(torch.cuda.memory_allocated() - before) if gpu else 1.0
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        kept = torch.cuda.memory_allocated() if gpu else 0
        self.step()
        self.wait()
        self.ephemeral = float(torch.cuda.max_memory_allocated() - kept) if gpu else 1.0

    def _on_stream(self, what: Callable[[], Any]) -> Any:
        if self.stream is None:
            return what()
        with torch.cuda.stream(self.stream):
            return what()

    def step(self) -> None:
        """Begin an iteration."""
        self._on_stream(self.training.step)

    def wait(self) -> None:
        """Wait until it has ended."""
        if self.stream is not None:
            self.stream.synchronize()

    def ended(self) -> bool:
        """Tell whether it has ended."""
        return self.stream is None or self.stream.query()


class Coordinator:
    """Carries out what Salus's policy decides, iteration by iteration, on the measured seconds of each job.

    - `residents`: the jobs.
    - `memory_bytes`: what the policy believes the GPU to have.
    """

    def __init__(self, residents: Sequence[Resident], memory_bytes: float) -> None:
        self._policy, self._residents = Salus("fair"), residents
        self._memory = self._policy.init()
        self._cluster = Cluster((Host("host", gpus=1, gpu_memory_bytes=memory_bytes),))
        self._tables = Tables(len(residents))
        self._jobs = [
            Job(
                f"{i}-{one.kind}",
                0.0,
                1,
                Iterations(1 << 30, 1.0),
                gpu_memory_bytes=one.persistent + one.ephemeral,
                gpu_persistent_bytes=one.persistent,
            )
            for i, one in enumerate(residents)
        ]
        self.deciding, self.decisions, self.switches = 0.0, 0, 0
        self.iterations = [0] * len(residents)

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return sum(len(lanes.members) for lanes in self._memory.devices.values())

    def run(self, seconds: float) -> None:
        """Run iterations for so long."""
        begin, running, before = time.perf_counter(), dict[int, float](), -1
        events: list[Event] = [Arrival(i) for i in range(len(self._jobs))] if not self.decisions else []
        while time.perf_counter() - begin < seconds:
            asked = time.perf_counter()
            wanted = self._decide(asked - begin, events)
            self.deciding += time.perf_counter() - asked
            self.decisions += 1
            for job in wanted:
                if job not in running:
                    self.switches += job != before
                    before = job
                    running[job] = time.perf_counter()
                    self._residents[job].step()
            if len(running) == 1:
                self._residents[next(iter(running))].wait()
            events = []
            while not events:
                for job in [job for job in running if self._residents[job].ended()]:
                    self._tables.executed[job] += time.perf_counter() - running.pop(job)
                    self.iterations[job] += 1
                    events.append(Advanced(job))
        for job in running:
            self._residents[job].wait()
            self.iterations[job] += 1

    def _decide(self, now: float, events: Sequence[Event]) -> Sequence[int]:
        estimates = [Estimate(float(1 << 30), "none", 0.0)] * len(self._jobs)
        active = range(len(self._jobs))
        state = State(now, self._cluster, self._jobs, active, {}, Room(self._cluster), estimates, self._tables)
        decision, self._memory = self._policy.decide(state, events, self._memory)
        return list(decision.grants)


def turns(rows: Rows, device: str, small: bool, seconds: float, repeats: int) -> None:
    """Measure pairs of trainings in one process: in one lane, where they alternate, and in a lane each."""
    for kinds in (("conv", "conv"), ("conv", "gpt"), ("gpt", "gpt")):
        name = "+".join(kinds)
        if not rows.time_for("turns", name, 6 * seconds * repeats + 5):
            return
        residents = [Resident(kind, device, small) for kind in kinds]
        ahead = [_alone(one, seconds, repeats, device, waits=False) for one in residents]
        alone = [_alone(one, seconds, repeats, device, waits=True) for one in residents]
        rows.add(
            "turns",
            case=f"{name}: alone",
            steps_a_second=ahead,
            waiting_after_each=alone,
            persistent_MB=[one.persistent / 1e6 for one in residents],
            ephemeral_MB=[one.ephemeral / 1e6 for one in residents],
        )
        kept = sum(one.persistent for one in residents)
        for lanes in (1, 2):
            needs = [one.ephemeral for one in residents]
            memory = kept + (max(needs) if lanes == 1 else sum(needs)) * (1 + 1e-9)
            _share(rows, name, residents, memory, [one["median"] for one in ahead], alone, seconds, repeats)
        del residents
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _share(
    rows: Rows,
    name: str,
    residents: Sequence[Resident],
    memory: float,
    ahead: Sequence[float],
    alone: Sequence[dict[str, float]],
    seconds: float,
    repeats: int,
) -> None:
    speeds, costs, deciding = [], [], []
    lanes = 0
    for _ in range(repeats):
        coordinator = Coordinator(residents, memory)
        begin = time.perf_counter()
        coordinator.run(seconds)
        taken = time.perf_counter() - begin
        lanes = coordinator.lanes
        speeds.append([done / taken / rate for done, rate in zip(coordinator.iterations, ahead, strict=True)])
        needed = sum(done / rate["median"] for done, rate in zip(coordinator.iterations, alone, strict=True))
        costs.append((taken - needed) / max(coordinator.switches, 1) * 1e6)
        deciding.append(coordinator.deciding / coordinator.decisions * 1e6)
    row: dict[str, Any] = {"of_alone": [spread([one[i] for one in speeds]) for i in range(len(ahead))]}
    if lanes == 1:  # what a turn takes longer than an iteration alone, with the wait after it
        row["switch_us"] = spread(costs)
    rows.add(
        "turns",
        case=f"{name}: {lanes} lane{'s' * (lanes > 1)}",
        **row,
        together=spread([sum(one) for one in speeds]),
        decision_us=spread(deciding),
    )


def _alone(one: Resident, seconds: float, repeats: int, device: str, waits: bool) -> dict[str, float]:
    found = []
    for _ in range(repeats):
        synchronize(device)
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            one.step()
            if waits:
                one.wait()
            steps += 1
        synchronize(device)
        found.append(steps / (time.perf_counter() - begin))
    return spread(found)

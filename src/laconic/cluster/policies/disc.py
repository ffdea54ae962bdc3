"""DISC: trials of hyper-parameter tuning share GPUs by time slices, which follow the trends of their accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.sharing.slices import admits, slices, trend
from laconic.cluster.sharing.turns import Device
from laconic.cluster.state import Advanced, Arrival, Completion, Event, HostLost, State, Wake
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@runtime_checkable
class Reports(Protocol):
    """A trial that reports its accuracy."""

    def accuracy(self, done: float) -> float:
        """Return the accuracy after some work.

        - `done`: the work.
        """


@dataclass
class Trials:
    """What is remembered: who waits for memory, who is on each GPU, what each has reported, the slices of this period,
    and when the next begins."""

    waiting: list[int] = field(default_factory=list)
    devices: dict[Device, list[int]] = field(default_factory=dict)
    curves: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    next: float = 0.0


@technique("disc", paper="Liu, Yu, Ding, ICPP 2022")
@dataclass(frozen=True)
class Disc(Policy):
    """Every trial on a GPU has a slice of each period, without a checkpoint between slices. When a period begins, they
    are set by potential: trials whose accuracy has risen steeply per GPU second get more, flat ones less
    (`sharing.slices`). What a trial does not need, as it is done, is the others' at once.

    A trial is admitted where the parts of all that stay in memory and the largest part that one iteration needs beside
    them fit (relaxed PACK), on the GPU with the fewest trials; others wait, and may be passed.

    A grant's share is the slice over the period. Of the paper the abstract alone was at hand: how trends are estimated,
    the heuristic and the period are this library's. Trials are jobs of one GPU; those that report no accuracy count as
    the steepest of their GPU. Where half of the trials of a GPU saturate soon and half late, the accuracies of all,
    summed at half of the makespan, are 10 to 12 % above equal slices, of 10 to 13 % that someone who knew the curves
    would gain; with seven other families of curves they are 5 to 11 %.
    """

    period: float = knob(60.0, above=0, doc="seconds in which every trial has its slice")
    least: float = knob(0.1, above=0, high=1, doc="part of an equal slice that every trial gets")
    recent: int = knob(3, low=2, doc="reports from which the trend is estimated")

    def init(self) -> Trials:
        return Trials()

    def decide(self, state: State, events: Sequence[Event], memory: Trials) -> tuple[Decision, Trials]:
        changed = self._note(state, events, memory)
        if changed:
            self._admit(state, memory)
        if changed or state.now >= memory.next - 1e-9:
            memory.shares = {}
            for jobs in filter(None, memory.devices.values()):
                trends = [trend(memory.curves.get(job, ()), self.recent) for job in jobs]
                for job, part in zip(jobs, slices(trends, self.period, self.least), strict=True):
                    memory.shares[job] = part / self.period
            memory.next = state.now + self.period
        grants = {
            job: Grant((Slot(*device, min(memory.shares[job], 1.0)),))
            for device, jobs in memory.devices.items()
            for job in jobs
        }
        is_shared = any(len(jobs) > 1 for jobs in memory.devices.values())
        return Decision(grants, memory.next if is_shared else None), memory

    def _note(self, state: State, events: Sequence[Event], memory: Trials) -> bool:
        """Take in what happened, and tell whether somebody came or went."""
        for event in events:
            if isinstance(event, Advanced):
                progress, done = state.jobs[event.job].progress, float(state.done(event.job))
                if isinstance(progress, Reports):
                    memory.curves.setdefault(event.job, [(0.0, 0.0)]).append((done, progress.accuracy(done)))
            elif isinstance(event, Arrival):
                if state.jobs[event.job].workers > 1:
                    raise ClusterError(f"{state.jobs[event.job].name} needs several GPUs; DISC shares single ones")
                memory.waiting.append(event.job)
            elif isinstance(event, Completion):
                memory.curves.pop(event.job, None)
                for jobs in memory.devices.values():
                    jobs[:] = [job for job in jobs if job != event.job]
            elif isinstance(event, HostLost):
                memory.waiting = sorted([*memory.waiting, *event.jobs])
                memory.devices = {device: jobs for device, jobs in memory.devices.items() if device[0] != event.host}
        return not all(isinstance(event, Advanced | Wake) for event in events)

    def _admit(self, state: State, memory: Trials) -> None:
        """Admit who fits, each to the GPU with the fewest trials that has memory for it."""
        for number, host in enumerate(state.cluster.hosts):
            for device in range(host.gpus if number not in state.room.lost else 0):
                memory.devices.setdefault((number, device), [])
        for job in list(memory.waiting):
            new = _needs(state, job)
            for place in sorted(memory.devices, key=lambda device: (len(memory.devices[device]), device)):
                there = [_needs(state, other) for other in memory.devices[place]]
                if admits(there, new, state.cluster.hosts[place[0]].gpu_memory_bytes):
                    memory.devices[place].append(job)
                    memory.waiting.remove(job)
                    break


def _needs(state: State, job: int) -> tuple[float, float]:
    about = state.jobs[job]
    return about.gpu_persistent_bytes, about.gpu_ephemeral_bytes

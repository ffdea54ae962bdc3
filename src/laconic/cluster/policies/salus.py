"""Salus: GPUs shared by iterations, with a memory of what models keep and lanes for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.sharing.lanes import Lanes
from laconic.cluster.state import Advanced, Arrival, Completion, Event, HostBack, HostLost, State
from laconic.errors import ClusterError
from laconic.registry import knob, technique

Device = tuple[int, int]


@dataclass
class Residents:
    """What Salus remembers: who is where, who waits for memory, and who runs in each lane."""

    devices: dict[Device, Lanes] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    at: dict[int, Device] = field(default_factory=dict)
    turn: dict[tuple[Device, int], int] = field(default_factory=dict)


@technique("salus", paper="Yu, Chowdhury, MLSys 2020")
@dataclass(frozen=True)
class Salus(Policy):
    """Jobs of one GPU share GPUs by iterations: many models are resident, and each lane's scheduler picks whose
    iteration is next, without a preemption inside one.

    Lanes of a GPU run at the same time and get equal shares of it. A switch costs nothing, as models stay where they
    are: replay it without costs of restarts. A job for which no GPU has memory waits and is tried again whenever
    another ends; those behind it may pass.
    """

    order: str = knob(
        "srtf",
        choices=("fifo", "srtf", "fair"),
        doc="whose iteration is next in a lane: who came first, who has least to do, or who has had least time",
    )

    def init(self) -> Residents:
        return Residents()

    def decide(self, state: State, events: Sequence[Event], memory: Residents) -> tuple[Decision, Residents]:
        open_turns = self._note(state, events, memory)
        if any(isinstance(event, Arrival | Completion | HostLost | HostBack) for event in events):
            self._admit(state, memory)
        wanted: dict[int, Grant] = {}
        for device, lanes in memory.devices.items():
            for lane, jobs in lanes.members.items():
                current = memory.turn.get((device, lane))
                if current is None or current in open_turns or current not in jobs:
                    current = min(jobs, key=lambda job: self._key(state, job))
                    memory.turn[device, lane] = current
                wanted[current] = Grant((Slot(*device, 1 / len(lanes.members)),))
        return Decision(wanted), memory

    def _note(self, state: State, events: Sequence[Event], memory: Residents) -> set[int]:
        """Take in what happened, and return the jobs whose iteration has ended."""
        open_turns: set[int] = set()
        for event in events:
            if isinstance(event, Arrival):
                if state.jobs[event.job].workers > 1:
                    raise ClusterError(f"{state.jobs[event.job].name} needs several GPUs; Salus shares single ones")
                memory.waiting.append(event.job)
            elif isinstance(event, Advanced):
                open_turns.add(event.job)
            elif isinstance(event, Completion):
                memory.devices[memory.at.pop(event.job)].leave(event.job)
            elif isinstance(event, HostLost):
                gone = [job for job, device in memory.at.items() if device[0] == event.host]
                memory.waiting = sorted(gone) + memory.waiting
                for job in gone:
                    del memory.at[job]
                memory.devices = {device: lanes for device, lanes in memory.devices.items() if device[0] != event.host}
        memory.turn = {
            (device, lane): job
            for (device, lane), job in memory.turn.items()
            if device in memory.devices and lane in memory.devices[device].members
        }
        return open_turns

    def _admit(self, state: State, memory: Residents) -> None:
        """Try everyone who waits, each on the GPU with the fewest jobs that has memory for it."""
        for host in range(len(state.cluster.hosts)):
            for number in range(state.cluster.hosts[host].gpus if host not in state.room.lost else 0):
                memory.devices.setdefault((host, number), Lanes(state.cluster.hosts[host].gpu_memory_bytes))
        for number in sorted(memory.waiting, key=lambda job: self._key(state, job)):
            job = state.jobs[number]
            for place in sorted(memory.devices, key=lambda d: (len(memory.devices[d].persistent), d)):
                if memory.devices[place].admit(number, job.gpu_persistent_bytes, job.gpu_ephemeral_bytes):
                    memory.at[number] = place
                    memory.waiting.remove(number)
                    break

    def _key(self, state: State, job: int) -> tuple[float, int]:
        if self.order == "srtf":
            return state.remaining(job).value, job
        return (float(state.executed(job)) if self.order == "fair" else 0.0), job

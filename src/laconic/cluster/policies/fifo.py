"""First in, first out: strict, or with backfill."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.state import Arrival, Event, HostLost, State
from laconic.registry import knob, technique


@technique("fifo", paper="classical; Jeon et al., USENIX ATC 2019 has it as the baseline")
@dataclass(frozen=True)
class Fifo(Policy):
    """Jobs start in the order of their arrivals, each tenant's for itself, and keep their GPUs until they are done.

    Strictly, whoever comes behind a job that does not fit waits with it; with backfill, those that fit go past it, and
    a large job may wait for ever.
    """

    backfill: bool = knob(False, doc="whether jobs that fit go past one that does not")

    def init(self) -> dict[str, deque[int]]:
        return {}

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[str, deque[int]]
    ) -> tuple[Decision, dict[str, deque[int]]]:
        for event in events:
            if isinstance(event, Arrival):
                memory.setdefault(state.jobs[event.job].tenant, deque()).append(event.job)
            elif isinstance(event, HostLost):  # they were there first
                for lost in reversed(event.jobs):
                    memory[state.jobs[lost].tenant].appendleft(lost)
        start: dict[int, Grant] = {}
        room = state.room
        for queue in memory.values():
            passed = 0
            while room.gpus and passed < len(queue):
                job = state.jobs[queue[passed]]
                grant = consolidated(room, job.workers)
                if grant is not None:
                    room = state.room.copy() if room is state.room else room
                    room.take(job, grant)
                    start[queue[passed]] = grant
                    del queue[passed]
                elif self.backfill:
                    passed += 1
                else:
                    break
        return Decision.changing(state.running, start), memory

"""GENIE: the task that can wait least first, on the fewest GPUs with which it is done in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.decision import Decision
from laconic.cluster.elastic import curve_of
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.policy import Policy
from laconic.cluster.room import Room
from laconic.cluster.state import Arrival, Completion, Event, State
from laconic.registry import technique

SLACK = 1e-6  # of seconds: sums of times round


@technique("genie", paper="Chen et al., IEEE TPDS 31(1), 2020")
@dataclass(frozen=True)
class Genie(Policy):
    """Tasks have a time by which they are to be done. How long one may still wait is that time less its predicted
    duration under its best placement; tasks are taken in the order of that allowance, those that cannot be in time any
    more behind the others.

    A task gets the fewest GPUs with which it is in time, on the fewest hosts; where none of what is free does that, the
    placement on which it is fastest. Nothing is preempted: whether the paper's started tasks move is not established.
    Predictions are the job's own rates; `laconic.cluster.data_parallel.fit` makes them of a light profile.
    """

    def init(self) -> dict[int, float]:
        return {}

    def decide(
        self, state: State, events: Sequence[Event], memory: dict[int, float]
    ) -> tuple[Decision, dict[int, float]]:
        for event in events:
            if isinstance(event, Arrival):
                memory[event.job] = float(curve_of(state.jobs[event.job], state.cluster).max())
            elif isinstance(event, Completion):
                del memory[event.job]
        room, start = state.room, dict[int, Grant]()
        if not room.gpus:
            return Decision.changing(state.running, {}), memory
        room = room.copy()
        allowances = {
            job: state.jobs[job].deadline - state.now - state.remaining(job).value / memory[job]
            for job in state.waiting
        }
        for job in sorted(allowances, key=lambda job: (allowances[job] < -SLACK, allowances[job], job)):
            grant = fewest_in_time(state, room, job)
            if grant is not None:
                room.take(state.jobs[job], grant)
                start[job] = grant
        return Decision.changing(state.running, start), memory


def fewest_in_time(state: State, room: Room, job: int) -> Grant | None:
    """Return the free slots of fewest GPUs with which a job is done by its deadline; where there are none, those on
    which it is done first; None where it cannot start.

    - `state`: the cluster now.
    - `room`: what is free.
    - `job`: its number.
    """
    about, best, soonest = state.jobs[job], None, float("inf")
    for workers in range(about.least, min(about.most, room.gpus) + 1):
        grant = consolidated(room, workers)
        if grant is None:
            break
        speed = about.progress.rate(float(state.done(job)), grant, state.cluster, ()).speed
        end = state.now + state.remaining(job).value / speed
        if end <= about.deadline + SLACK:
            return grant
        if end < soonest:
            best, soonest = grant, end
    return best

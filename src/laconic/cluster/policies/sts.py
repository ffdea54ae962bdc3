"""STS, the stochastic scheduler: few GPUs at first, since a job may end early, and more if it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.energy.early_stopping import Configuration, EarlyStopping, Plan, cheapest
from laconic.cluster.energy.node_power import NodePower
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.policy import Policy
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from laconic.errors import ClusterError
from laconic.registry import knob, technique


@technique("sts", paper="Filippini, Anselmi, Ardagna, Gaujal, IEEE Transactions on Cloud Computing 12(1), 2024")
@dataclass(frozen=True)
class Sts(Policy):
    """Jobs with due dates that may end early get, at every event, the plan of configurations with the least expected
    energy that is in time even if they do not: few GPUs for epochs that are likely to be run, more for those that are
    not. Whoever has least time to spare at its fastest is served first, on the fullest host that has as many GPUs free,
    so that others stay off; where no host has, the next faster configuration is tried, and then slower ones. Who keeps
    its number of GPUs stays where it is.

    The weight of a job is what a second of tardiness costs, in joules. The abstract and the shape of the authors'
    program were at hand, not its text: they solve for the epochs at which a job gets more GPUs by a nonlinear program,
    here a Lagrangian relaxation over whole epochs does; a running job may also get fewer GPUs again, when others took
    part of its slack. GPUs are not shared.
    """

    base_watts: float = knob(300.0, low=0, doc="watts of a host that is on")
    gpu_watts: float = knob(250.0, above=0, doc="watts of each busy GPU beside that")

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        del events
        host_gpus = max(host.gpus for host in state.cluster.hosts)
        power = NodePower(self.base_watts, self.gpu_watts)
        jobs = {job: _progress(state, job) for job in state.active}
        pieces = {job: progress.ahead(round(float(state.done(job)), 6)) for job, progress in jobs.items()}
        spare = {
            job: state.jobs[job].deadline - state.now - sum(length for length, _ in pieces[job]) / max(one.speeds)
            for job, one in jobs.items()
        }
        room = state.room.copy()
        for job, held in state.running.items():
            room.give(state.jobs[job], held)
        grants, wake = dict[int, Grant](), math.inf
        for job in sorted(jobs, key=lambda job: (spare[job], job)):
            choices = _choices(jobs[job], state.jobs[job].least, min(host_gpus, state.jobs[job].most), power, host_gpus)
            due = state.jobs[job].deadline - state.now
            plan = cheapest(pieces[job], choices, due if math.isinf(due) else round(due, 3), state.jobs[job].weight)
            grant = _placed(room, state.running.get(job), plan, choices)
            if grant is not None:
                grants[job] = grant
                room.take(state.jobs[job], grant)
                if len(grant.slots) == plan.gpus[0]:
                    wake = min(wake, state.now + max(plan.until, 1e-3))
        return Decision(grants, None if math.isinf(wake) else wake), memory


def _progress(state: State, job: int) -> EarlyStopping:
    progress = state.jobs[job].progress
    if not isinstance(progress, EarlyStopping):
        raise ClusterError(f"{state.jobs[job].name} does not say how it may end early; sts plans jobs of EarlyStopping")
    return progress


def _choices(
    progress: EarlyStopping, least: int, most: int, power: NodePower, host_gpus: int
) -> tuple[Configuration, ...]:
    """Return the configurations of a job, of which none is both slower and dearer than another."""
    found: list[Configuration] = []
    for gpus in range(least, min(most, len(progress.speeds)) + 1):
        seconds = 1 / progress.speeds[gpus - 1]
        one = Configuration(gpus, seconds, seconds * power.of_job(gpus, host_gpus))
        if not found or seconds < min(other.seconds for other in found):
            found.append(one)
    return tuple(found)


def _placed(room: Room, held: Grant | None, plan: Plan, choices: Sequence[Configuration]) -> Grant | None:
    """Return slots for the first configuration of a plan, or for another where no host has as many GPUs free."""
    numbers = [one.gpus for one in choices]
    wanted = plan.gpus[0]
    order = [n for n in numbers if n >= wanted] + [n for n in reversed(numbers) if n < wanted]
    for gpus in order:
        if held is not None and len(held.slots) == gpus and all(room.free[d] >= ALMOST for d in held.devices):
            return held
        fitting = np.flatnonzero(room.whole >= gpus)
        if len(fitting):
            host = int(fitting[room.whole[fitting].argmin()])
            return Grant.of(Slot(host, d) for d in np.flatnonzero(room.free[host] >= ALMOST)[:gpus].tolist())
    return None

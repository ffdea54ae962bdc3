"""Step 2, allocate: how many GPUs each job is to have, and the slots of those that have another number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.policies.afs import apathetic_shares
from laconic.cluster.room import Room
from laconic.cluster.state import State
from laconic.cluster.workflow.features import Features

RULES = ("shares",)


def allocate(rule: str | None, state: State, features: Mapping[int, Features]) -> dict[int, int]:
    """Return the workers of each job that is there.

    - `rule`: `shares` to hand out GPUs one at a time, to the short job or to the efficient one, as AFS does; none:
      every job has what it asks for, to itself.
    - `state`: the cluster now.
    - `features`: what is known of each job.
    """
    asked = {job: state.jobs[job].workers for job in features}
    if rule is None:
        return asked
    lengths, curves = {}, {}
    for job, known in features.items():
        if known.speeds:
            lengths[job] = max(known.work.value - float(state.done(job)), 0.0)
            curves[job] = np.array(known.speeds)
    taken = sum(len(grant.slots) for job, grant in state.running.items() if job not in lengths)
    gpus = state.room.gpus + sum(len(grant.slots) for grant in state.running.values()) - taken
    return asked | {job: state.jobs[job].least for job in lengths} | apathetic_shares(lengths, curves, gpus)


def shrunk(state: State, workers: Mapping[int, int]) -> tuple[dict[int, Grant], Room]:
    """Return what running jobs hold when those that are to have fewer workers have given up their last ones, and what
    is free then.

    - `state`: the cluster now.
    - `workers`: what each job is to have.
    """
    running, room = dict(state.running), state.room.copy()
    for job, grant in state.running.items():
        if workers[job] < len(grant.slots):
            running[job] = replace(grant, slots=grant.slots[: workers[job]])
            room.give(state.jobs[job], grant)
            room.take(state.jobs[job], running[job])
    return running, room


def grown(state: State, grants: Mapping[int, Grant], room: Room, workers: Mapping[int, int]) -> dict[int, Grant]:
    """Return what jobs hold when those that are to have more workers have got them, while GPUs last, in the order of
    their arrivals.

    - `state`: the cluster now.
    - `grants`: what each holds.
    - `room`: what is free beside that, which is changed.
    - `workers`: what each is to have.
    """
    found = dict(grants)
    for job in sorted(found):
        more = min(workers[job] - len(found[job].slots), room.gpus)
        extra = consolidated(room, more) if more > 0 and not found[job].is_shared else None
        if extra is not None:
            room.take(state.jobs[job], extra)
            found[job] = replace(found[job], slots=tuple(sorted((*found[job].slots, *extra.slots))))
    return found

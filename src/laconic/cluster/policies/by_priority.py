"""What preemptive policies of whole gangs share: jobs in an order, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.compiled import in_turn
from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.room import Room
from laconic.cluster.state import State

Place = Callable[[Room, int], Grant | None]


def run_in_order(
    state: State, order: Iterable[int] | NDArray[np.int64], place: Place = consolidated, wake: float | None = None
) -> Decision:
    """Return the decision that jobs run in an order while GPUs last, whole gangs only: who runs already and still fits
    keeps what it holds, who falls out is preempted, who is too large for what is left is passed over.

    - `state`: the cluster now.
    - `order`: the numbers of jobs, the most urgent first.
    - `place`: where those go that start.
    - `wake`: when to be asked again.
    """
    if not isinstance(order, np.ndarray):
        order = np.fromiter(order, np.int64)
    if len(state.running) == len(state.active) == len(order):  # all fit, since all run
        return Decision.changing(state.running, {}, wake=wake)
    left, found = state.cluster.gpus, np.empty(len(order), np.int64)
    for host in state.room.lost:
        left -= state.cluster.hosts[host].gpus
    starts, stops = in_turn(order, state.workers(), state.tables.held, left, found)
    starting, stop = found[:starts].tolist(), sorted(found[len(found) - stops :].tolist())
    if len(order) < len(state.active):
        stop = sorted({*stop, *state.running.keys() - order.tolist()})
    start: dict[int, Grant] = {}
    room = state.room
    if stop or len(starting) > 1:
        room = room.copy()
    for job in stop:
        room.give(state.jobs[job], state.running[job])
    for job in starting:
        grant = place(room, state.jobs[job].workers)
        if grant is not None:
            start[job] = grant
            if job != starting[-1]:  # what the last takes, nobody sees
                room.take(state.jobs[job], grant)
    return Decision.changing(state.running, start, stop, wake)

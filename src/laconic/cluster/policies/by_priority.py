"""What preemptive policies of whole gangs share: jobs in an order, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.room import Room
from laconic.cluster.state import State

Place = Callable[[Room, int], Grant | None]


Rule = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Puts jobs, whose numbers ascend, in an order, the most urgent first."""


def run_in_order(
    state: State,
    order: Iterable[int] | NDArray[np.int64] | Rule,
    place: Place = consolidated,
    wake: float | None = None,
) -> Decision:
    """Return the decision that jobs run in an order while GPUs last, whole gangs only: who runs already and still fits
    keeps what it holds, who falls out is preempted, who is too large for what is left is passed over.

    - `state`: the cluster now.
    - `order`: the numbers of jobs, the most urgent first; or a rule that orders all jobs that are there, which is asked
      only about those that wait where all of them fit.
    - `place`: where those go that start.
    - `wake`: when to be asked again.
    """
    if callable(order):
        count = len(state.active) - len(state.running)
        if not count:
            return Decision.changing(state.running, {}, wake=wake)
        if count <= state.room.gpus:  # each has one worker at least
            waiting = np.array(state.waiting, dtype=np.int64)
            if state.workers()[waiting].sum() <= state.room.gpus:
                return _start(state, order(waiting).tolist(), (), place, wake)
        order = order(np.fromiter(state.active, np.int64, len(state.active)))
    elif not isinstance(order, np.ndarray):
        order = np.fromiter(order, np.int64)
    if len(state.running) == len(state.active) == len(order):  # all fit, since all run
        return Decision.changing(state.running, {}, wake=wake)
    hosts = state.cluster.hosts
    left = state.cluster.gpus - sum(hosts[host].gpus for host in state.room.lost)
    chosen = _fitting(order, state.workers(), left)
    starts = state.tables.held[chosen] == 0
    starting = chosen[starts].tolist()
    if len(chosen) - len(starting) == len(state.running):
        return _start(state, starting, (), place, wake)
    return _start(state, starting, sorted(state.running.keys() - chosen.tolist()), place, wake)


def _start(state: State, starting: Sequence[int], stop: Sequence[int], place: Place, wake: float | None) -> Decision:
    """Return the decision that some jobs stop and others start where there is room for them."""
    if not starting and not stop:
        return Decision.changing(state.running, {}, wake=wake)
    room = state.room.copy()
    for job in stop:
        room.give(state.jobs[job], state.running[job])
    start: dict[int, Grant] = {}
    for job in starting:
        grant = place(room, state.jobs[job].workers)
        if grant is not None:
            start[job] = grant
            room.take(state.jobs[job], grant)
    return Decision.changing(state.running, start, stop, wake)


def _fitting(order: NDArray[np.int64], workers: NDArray[np.int64], left: int) -> NDArray[np.int64]:
    """Return the jobs that get GPUs one after another, where those that are too large for what is left get none."""
    taken = [order[:0]]
    while left and len(order):
        sums = workers[order[: left + 1]].cumsum()  # each has one worker at least
        count = int(sums.searchsorted(left, "right"))
        if count:
            taken.append(order[:count])
            left -= int(sums[count - 1])
        order = order[count + 1 :]  # the next is too large
        order = order[workers[order] <= left]
    return np.concatenate(taken)

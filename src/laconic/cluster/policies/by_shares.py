"""What policies of elastic jobs share: numbers of workers turned into slots."""

from __future__ import annotations

from collections.abc import Mapping

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant
from laconic.cluster.placement import consolidated
from laconic.cluster.state import State


def run_with_shares(state: State, shares: Mapping[int, int], wake: float | None = None) -> Decision:
    """Return the decision that jobs run with so many whole GPUs each: who has that number keeps its slots, the others
    are packed on as few hosts as possible, the largest first.

    - `state`: the cluster now.
    - `shares`: workers of each job, by its number; absent or 0: it does not run.
    - `wake`: when to be asked again.
    """
    running = state.running
    changed = [
        job
        for job, workers in shares.items()
        if workers and len(running[job].slots if job in running else ()) != workers
    ]
    stop = [job for job in running if not shares.get(job)]
    if not changed and not stop:
        return Decision.changing(running, {}, wake=wake)
    room = state.room.copy()
    for job in (*stop, *(job for job in changed if job in running)):
        room.give(state.jobs[job], running[job])
    start: dict[int, Grant] = {}
    for job in sorted(changed, key=lambda job: (-shares[job], job)):
        grant = consolidated(room, shares[job])
        if grant is None:
            stop.append(job)
            continue
        room.take(state.jobs[job], grant)
        start[job] = grant
    return Decision.changing(running, start, stop, wake)

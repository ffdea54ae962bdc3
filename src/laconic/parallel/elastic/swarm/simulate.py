"""The throughput of a swarm on a virtual clock: microbatches queue at peers, and peers move to where queues are."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from laconic.parallel.elastic.swarm.rebalance import Report, rebalance
from laconic.parallel.elastic.swarm.wiring import Wiring, choose, join, leave


@dataclass(frozen=True)
class SwarmRun:
    """What a simulated swarm did: microbatches finished in each period, and at the end each peer's stage."""

    finished: tuple[int, ...]
    stage_of: Mapping[int, int]


def simulate_swarm(
    stage_of: Mapping[int, int],
    speeds: Mapping[int, float],
    periods: int,
    period_seconds: float,
    in_flight: int,
    rebalances: bool = True,
    seed: int = 0,
) -> SwarmRun:
    """Return the throughput of forward passes through all stages, period by period.

    - `stage_of`: of each peer at the beginning.
    - `speeds`: tasks a second of each peer.
    - `periods`, `period_seconds`: between two looks at the queues.
    - `in_flight`: microbatches that trainers keep going.
    - `rebalances`: whether a peer moves at the end of a period; it takes its queue to others of its stage.
    - `seed`: of the wiring.
    """
    place, stages = dict(stage_of), max(stage_of.values()) + 1
    wirings = [Wiring({}, seed=seed + stage) for stage in range(stages)]
    for number, stage in place.items():
        wirings[stage] = join(wirings[stage], number, speeds[number])
    queues: dict[int, deque[int]] = {number: deque() for number in place}
    serving: dict[int, int] = {}
    events: list[tuple[float, int, int]] = []  # end of a call, its peer, its microbatch
    now, finished = 0.0, []

    def send(microbatch: int, stage: int) -> None:
        number, wirings[stage] = choose(wirings[stage], 1.0, now)
        queues[number].append(microbatch)
        serve(number)

    def serve(number: int) -> None:
        if number not in serving and queues[number]:
            serving[number] = queues[number].popleft()
            heapq.heappush(events, (now + 1 / speeds[number], number, serving[number]))

    for microbatch in range(in_flight):
        send(microbatch, 0)
    done_at = dict(place)  # the stage of the call that a peer serves
    for period in range(1, periods + 1):
        count = 0
        while events and events[0][0] <= period * period_seconds:
            now, number, microbatch = heapq.heappop(events)
            del serving[number]
            after = done_at[number] + 1
            done_at[number] = place[number]
            serve(number)
            count += after == stages
            send(microbatch, after % stages)
        now = period * period_seconds
        finished.append(count)
        reports: dict[int, dict[int, Report]] = {stage: {} for stage in range(stages)}
        for number, stage in place.items():
            reports[stage][number] = Report(len(queues[number]) + (number in serving), speeds[number])
        move = rebalance(reports) if rebalances else None
        if move is not None:
            wirings[move.source] = leave(wirings[move.source], move.peer)
            wirings[move.target] = join(wirings[move.target], move.peer, speeds[move.peer])
            place[move.peer] = move.target
            if move.peer not in serving:
                done_at[move.peer] = move.target
            waiting, queues[move.peer] = queues[move.peer], deque()
            for microbatch in waiting:
                send(microbatch, move.source)
    return SwarmRun(tuple(finished), place)

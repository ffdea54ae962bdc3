"""SWARM's rebalancing: a peer of the least loaded stage moves to the most loaded one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PERIOD_SECONDS = 300.0
"""The time between two looks at the queues."""


@dataclass(frozen=True)
class Report:
    """What a peer publishes: the calls that wait at it, and its speed."""

    waiting: int
    tasks_per_second: float


@dataclass(frozen=True)
class Move:
    """A peer goes to another stage, where it downloads parameters and the optimizer's state."""

    peer: int
    source: int
    target: int


def rebalance(stages: Mapping[int, Mapping[int, Report]]) -> Move | None:
    """Return the move that the queues ask for, if any: the peer with the shortest queue of the stage where fewest calls
    wait for a peer goes to the stage where most do.

    The paper does not say when a move is left out. Here it is where the giving stage has one peer only, where no more
    calls wait at the other stage, and where the giver would then be slower than the receiver is now: without that, two
    stages that are nearly equal send the same peer to and fro.

    - `stages`: reports by stage and peer.
    """
    load = {
        stage: sum(report.waiting for report in peers.values()) / max(1, len(peers)) for stage, peers in stages.items()
    }
    source = min(stages, key=lambda stage: (load[stage], stage))
    target = max(stages, key=lambda stage: (load[stage] if stages[stage] else float("inf"), -stage))
    if len(stages[source]) < 2 or load[source] >= load[target]:
        return None
    peer = min(stages[source], key=lambda number: (stages[source][number].waiting, number))
    speed = {stage: sum(report.tasks_per_second for report in stages[stage].values()) for stage in (source, target)}
    if speed[source] - stages[source][peer].tasks_per_second < speed[target]:
        return None
    return Move(peer, source, target)

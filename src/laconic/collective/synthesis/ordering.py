"""TACCL's second stage: in which order chunks go over each way, by a greedy rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laconic.collective.synthesis.routing import Routes
from laconic.collective.synthesis.timetable import Order
from laconic.collective.synthesis.wiring import Wiring


def ordering(wiring: Wiring, routes: Routes, chunk_bytes: float) -> Order:
    """Return the order in which sends start where each starts as soon as it can.

    Of those that can start at the same time, the one with the longest remaining path of its chunk is first; of these,
    the one whose chunk has come the shortest path so far; of these, those of one way.
    """
    ways = routes.sends[:, 1]
    takes = wiring.latency_seconds[ways] + chunk_bytes / wiring.rates[ways]
    remaining, so_far = _paths(routes, takes)
    shared = {number: set(m.tolist()) for number, (m, _) in enumerate(wiring.limits) if len(m) > 1}
    limits_of = [[number for number, members in shared.items() if way in members] for way in range(len(wiring.ends))]
    found = Order({}, {})
    way_free, limit_free = np.zeros(len(wiring.ends)), np.zeros(len(wiring.limits))
    ready: dict[int, float] = dict.fromkeys(np.flatnonzero(routes.parent < 0).tolist(), 0.0)
    children: dict[int, list[int]] = {}
    for send, parent in enumerate(routes.parent.tolist()):
        children.setdefault(parent, []).append(send)

    def start(send: int) -> float:
        way = int(ways[send])
        bytes_from = max((float(limit_free[k]) for k in limits_of[way]), default=0.0)
        return max(ready[send], float(way_free[way]), bytes_from - float(wiring.latency_seconds[way]))

    while ready:
        starts = {send: start(send) for send in ready}
        soonest = min(starts.values())
        now = [send for send, when in starts.items() if when <= soonest * (1 + 1e-9)]
        send = min(now, key=lambda k: (-remaining[k], so_far[k], ways[k], routes.kind[k]))
        way = int(ways[send])
        begin = starts[send]
        found.ways.setdefault(way, []).append(send)
        for number in limits_of[way]:
            found.shared.setdefault(number, []).append(send)
            limit_free[number] = begin + wiring.latency_seconds[way] + chunk_bytes / wiring.limits[number][1]
        way_free[way] = begin + takes[send]
        del ready[send]
        ready.update({child: begin + float(takes[send]) for child in children.get(send, [])})
    return found


def _paths(routes: Routes, takes: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    """Return for each send the seconds of the longest path after it, and of the path before it."""
    remaining, so_far = np.zeros(len(takes)), np.zeros(len(takes))
    for send, parent in enumerate(routes.parent.tolist()):
        if parent >= 0:
            so_far[send] = so_far[parent] + takes[parent]
    for send in range(len(takes) - 1, -1, -1):
        parent = int(routes.parent[send])
        if parent >= 0:
            remaining[parent] = max(remaining[parent], remaining[send] + takes[send])
    return remaining.round(12).tolist(), so_far.round(12).tolist()

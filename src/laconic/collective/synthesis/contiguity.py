"""TACCL's third stage: which neighbouring sends of a way are one message, and when each starts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from laconic.collective.synthesis.model import Model
from laconic.collective.synthesis.routing import Routes
from laconic.collective.synthesis.timetable import Order, Timetable, timetable
from laconic.collective.synthesis.wiring import Wiring
from laconic.errors import LaconicError


def contiguity(wiring: Wiring, routes: Routes, order: Order, chunk_bytes: float, seconds: float) -> Timetable:
    """Return the fastest timetable for these routes and this order.

    Sends as one message have one latency, and none of their chunks arrives before the last. What the solver finds in
    time is compared with the timetables in which nothing is joined and in which everything is.
    """
    nothing = np.zeros(len(routes.sends), dtype=bool)
    everything = nothing.copy()
    for sends in order.ways.values():
        everything[sends[1:]] = True
    ways = [nothing, everything]
    plain = timetable(wiring, routes, order, nothing, chunk_bytes)
    if plain is None:
        raise LaconicError("the order of sends has a circle")
    if everything.any():
        solved = _solve(wiring, routes, order, chunk_bytes, plain.seconds, seconds)
        ways += [] if solved is None else [solved]
    tables = [timetable(wiring, routes, order, joined, chunk_bytes) for joined in ways]
    return min((table for table in tables if table is not None), key=lambda table: table.seconds)


def _solve(
    wiring: Wiring, routes: Routes, order: Order, chunk_bytes: float, at_most: float, seconds: float
) -> NDArray[np.bool_] | None:
    """Return which sends the solver joins; those of the same classes are joined alike."""
    model, count, unit = Model(), len(routes.sends), at_most
    start, begin, end = ([model.variable(0.0, 1.0) for _ in range(count)] for _ in range(3))
    finish = model.variable(0.0, 1.0, cost=1.0)
    join: dict[tuple[int, int], int] = {}
    joins: list[tuple[int, int]] = []
    for send in range(count):
        model.row([(finish, 1.0), (end[send], -1.0)], low=0.0)
        parent = int(routes.parent[send])
        if parent >= 0:
            model.row([(start[send], 1.0), (end[parent], -1.0)], low=0.0)
    for way, sends in order.ways.items():
        latency = float(wiring.latency_seconds[way]) / unit
        takes = chunk_bytes / float(wiring.rates[way]) / unit
        for before, send in zip([-1, *sends], sends, strict=False):
            model.row([(begin[send], 1.0), (start[send], -1.0)], low=latency)
            model.row([(end[send], 1.0), (begin[send], -1.0)], low=takes)
            if before < 0:
                continue
            key = int(routes.kind[before]), int(routes.kind[send])
            if key not in join:
                join[key] = model.variable(whole=True)
            one = join[key]
            joins.append((send, one))
            model.row([(begin[send], 1.0), (begin[before], -1.0)], low=takes)
            model.row([(start[send], 1.0), (start[before], -1.0)], low=0.0)
            model.row([(start[send], 1.0), (start[before], -1.0), (one, 1.0)], high=1.0)
            model.row([(end[before], 1.0), (end[send], -1.0), (one, -1.0)], low=-1.0)
            model.row([(start[send], 1.0), (end[before], -1.0), (one, 1.0)], low=0.0)
    for limit, sends in order.shared.items():
        takes = chunk_bytes / wiring.limits[limit][1] / unit
        for a, b in pairwise(sends):
            model.row([(begin[b], 1.0), (begin[a], -1.0)], low=takes)
    found = model.solve(seconds, gap=1e-3)
    if found.values is None:
        return None
    joined = np.zeros(count, dtype=bool)
    for send, one in joins:
        joined[send] = found.values[one] > 0.5
    return joined

"""TACCL: collectives for larger networks, synthesised in three stages with the help of a sketch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from laconic.collective.price import price
from laconic.collective.program import COPY, Program
from laconic.collective.relation import Relation
from laconic.collective.synthesis.contiguity import contiguity
from laconic.collective.synthesis.ordering import ordering
from laconic.collective.synthesis.routing import Routes, RoutingModel
from laconic.collective.synthesis.sketch import Sketch
from laconic.collective.synthesis.symmetry import rotations
from laconic.collective.synthesis.timetable import Order, Timetable
from laconic.collective.synthesis.wiring import Wiring, wiring
from laconic.network.graph import Graph
from laconic.registry import technique


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A collective that TACCL's stages have found.

    - `program`: its sends; those of one message are in one step.
    - `wiring`, `routes`, `order`, `times`: what the stages decided.
    - `bound_seconds`: what no schedule within the sketch, with its symmetry, can beat.
    """

    program: Program
    wiring: Wiring
    routes: Routes
    order: Order
    times: Timetable
    bound_seconds: float

    @property
    def seconds(self) -> float:
        """Until the last chunk has arrived, by the timetable."""
        return self.times.seconds


@technique(
    "taccl",
    axis="architecture",
    paper="Shah et al., NSDI 2023",
    why_no_word="It finds programs for a given graph, which are run by `group.run` as any other program is.",
)
def taccl(graph: Graph, relation: Relation, nbytes: float, sketch: Sketch, seconds: float = 120.0) -> Scheduled:
    """Return a collective that copies, for vectors of so many bytes on a graph, within a sketch.

    Routes are chosen by a solver, without regard to the order on links; then the order by a greedy rule; then, by a
    solver, which chunks are sent as one message. A reduce-scatter is an all-gather of the graph backwards, backwards.
    On two hosts of four ranks the result takes at most 1.3 times the bound where all ranks send to the other host, and
    up to 1.44 times where one of two does, for sizes at which latency and bytes weigh the same.

    - `relation`: the collective; each of its chunks is cut as the sketch says.
    - `seconds`: for both solvers together; the best that is found by then is taken.
    """
    until = time.monotonic() + seconds
    ways, cut = wiring(graph, sketch.ways), relation.cut(sketch.chunks)
    chunk_bytes = nbytes / cut.pieces
    group = rotations(ways, cut, sketch.turns)
    bound = RoutingModel(ways, cut, chunk_bytes, group, latency_once=True).bound_seconds(seconds / 4)
    model = RoutingModel(ways, cut, chunk_bytes, group)
    model.prefer(sketch.switches)
    routes = model.solve(seconds / 2)
    order = ordering(ways, routes, chunk_bytes)
    times = contiguity(ways, routes, order, chunk_bytes, until - time.monotonic())
    programs = [_program(cut, ways, routes, order, times, ports) for ports in (False, True)]
    best = min(programs, key=lambda program: price(program, nbytes, graph).seconds)
    return Scheduled(best, ways, routes, order, times, bound)


def _program(relation: Relation, ways: Wiring, routes: Routes, order: Order, times: Timetable, ports: bool) -> Program:
    """Return the messages as steps: each in the first after those that bring its chunks, and after the one before it
    on its way; with `ports`, also not before those that are before it on a link that they share."""
    message = times.message
    step = np.zeros(len(message), dtype=np.int64)
    waits = [(int(a), b) for b, a in enumerate(routes.parent.tolist()) if a >= 0]
    for sends in order.ways.values():
        waits += [(a, b) for a, b in pairwise(sends) if message[a] != message[b]]
    for sends in order.shared.values() if ports else ():
        waits += [(a, b) for a, b in pairwise(sends) if times.start[a] < times.start[b]]
    for _ in range(len(message) + 1):
        before = step.copy()
        for a, b in waits:
            step[message[b]] = max(step[message[b]], step[message[a]] + 1)
        if np.array_equal(before, step):
            break
    rows = [
        (int(step[message[k]]), *ways.ends[way].tolist(), chunk, COPY)
        for k, (chunk, way) in enumerate(routes.sends.tolist())
    ]
    return Program.of("taccl", relation, rows)

"""Collectives that add, from those that copy: a reduce-scatter is an all-gather backwards, an all-reduce is both."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from laconic.collective.compose import reverse, then
from laconic.collective.program import Program, Sends
from laconic.collective.relation import RELATIONS, Relation, all_reduce
from laconic.network.graph import Graph

Copying = Callable[[Graph, Relation], Program]
"""What finds a program that copies, for a graph and a relation."""

_FROM = {"reduce_scatter": "all_gather", "reduce": "broadcast"}


def halves(graph: Graph, collective: str, copying: Copying) -> Program:
    """Return a collective of any kind, from programs that copy on the graph, and on the graph backwards.

    A send backwards goes over a link backwards: what is to add on a graph is found on that with all links turned.
    """
    if collective == "all_reduce":
        scatter, gather = (halves(graph, name, copying) for name in ("reduce_scatter", "all_gather"))
        chunks = math.lcm(scatter.chunks, gather.chunks)
        scatter, gather = (_cut(half, chunks // half.chunks) for half in (scatter, gather))
        return then(scatter, gather, f"{gather.name} all-reduce", all_reduce(graph.size, chunks))
    if collective in _FROM:
        return reverse(copying(backwards(graph), _smallest(_FROM[collective], graph.size)))
    return copying(graph, _smallest(collective, graph.size))


def backwards(graph: Graph) -> Graph:
    """Return the graph with all links turned."""
    turned = graph.ends[:, ::-1]
    order = np.lexsort(turned.T[::-1])
    return Graph(graph.size, turned[order], graph.bits_per_second[order], graph.latency_seconds[order])


def _smallest(collective: str, size: int) -> Relation:
    """Return a collective that copies, with as few chunks as it can have."""
    chunks = {"broadcast": 1, "all_to_all": size * size}.get(collective, size)
    return RELATIONS[collective](size, chunks)


def _cut(program: Program, parts: int) -> Program:
    """Return the program with each chunk in parts that are sent together."""
    table = np.repeat(program.sends.table, parts, axis=0)
    table[:, 3] = table[:, 3] * parts + np.tile(np.arange(parts), len(program.sends))
    shares = np.repeat(program.shares / parts, parts)
    return Program(program.name, program.relation.cut(parts), Sends.of(table), shares)

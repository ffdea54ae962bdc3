"""Switches taken out of a graph: what enters by a link and leaves by another becomes a link of its own.

In a graph in which as much enters each node as leaves it, all links of a switch can be split off in pairs without
lowering the rate at which all ranks can broadcast (Jackson, 1988; Bang-Jensen, Frank and Jackson, 1995).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from laconic.collective.packing.capacities import Matrix
from laconic.collective.packing.flows import Question, max_flows
from laconic.errors import LaconicError
from laconic.network.graph import Graph

Way = tuple[int, ...]
"""The nodes that a transfer passes, its ends included."""

Ways = dict[tuple[int, int], list[tuple[Way, int]]]
"""The ways between two nodes, and how much of the capacity each has."""


def split_switches(capacity: Matrix, graph: Graph, trees: int) -> tuple[Matrix, Ways]:
    """Return capacities between ranks alone that allow as many trees from every rank, and the ways behind them."""
    left, ranks = capacity.copy(), graph.size
    ways: Ways = {
        (a, b): [((a, b), int(left[a, b]))] for a, b in zip(*(ends.tolist() for ends in np.nonzero(left)), strict=True)
    }
    uneven = np.flatnonzero(left.sum(axis=0) != left.sum(axis=1))
    if len(left) > ranks and len(uneven):
        raise LaconicError(
            f"switches can be taken out only where as much enters each node as leaves it, which is not so at {uneven}"
        )
    for switch in range(ranks, len(left)):
        for source, sink in _pairs(left, switch, graph):
            amount = _splittable(left, ranks, trees, source, switch, sink)
            if amount:
                _split(left, ways, source, switch, sink, amount)
        if left[switch].any() or left[:, switch].any():
            raise LaconicError(f"switch {switch} cannot be taken out without lowering the rate")
    return left[:ranks, :ranks], ways


def _pairs(left: Matrix, switch: int, graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield the nodes before and after the switch, as long as something is left to split.

    Those between which the graph's own way passes the switch come first, since transfers will take it; a node with
    itself comes last.
    """
    sources, sinks = np.flatnonzero(left[:, switch]).tolist(), np.flatnonzero(left[switch]).tolist()
    pairs = [(source, sink) for sink in sinks for source in sources]
    passing = (graph.ends[graph.routes(*zip(*pairs, strict=True)).links] == switch).any(axis=(1, 2)) if pairs else []
    rank = {pair: (pair[0] == pair[1], not passes) for pair, passes in zip(pairs, passing, strict=True)}
    for source, sink in sorted(pairs, key=lambda pair: (*rank[pair], (pair[0] - pair[1]) % len(left), pair)):
        if left[source, switch] and left[switch, sink]:
            yield source, sink


def _splittable(left: Matrix, ranks: int, trees: int, source: int, switch: int, sink: int) -> int:
    """Return how much can be split off: only sets that hold the switch alone of the three, or the other two without
    it, lose by that, and must keep what the trees of all ranks need."""
    fed = np.pad(left, (0, 1))
    origin, enough = len(left), ranks * trees
    fed[origin, :ranks] = trees
    most = int(min(left[source, switch], left[switch, sink]))
    around = ((origin, source), (origin, sink))
    questions = [Question(origin, switch, (*around, (rank, switch))) for rank in range(ranks)]
    alone = ((origin, switch), (source, sink)) if source != sink else ((origin, switch),)
    if min(source, sink) < ranks:  # a rank is outside already
        questions.append(Question(origin, sink, alone))
    else:
        questions += [Question(origin, sink, (*alone, (rank, sink))) for rank in range(ranks)]
    return int(max_flows(fed, questions, enough + most).min()) - enough


def _split(left: Matrix, ways: Ways, source: int, switch: int, sink: int, amount: int) -> None:
    left[source, switch] -= amount
    left[switch, sink] -= amount
    before, after = _taken(ways, (source, switch), amount), _taken(ways, (switch, sink), amount)
    if source == sink:
        return
    left[source, sink] += amount
    found = ways.setdefault((source, sink), [])
    while before:
        (there, a), (on, b) = before[-1], after[-1]
        both = min(a, b)
        found.append(((*there, *on[1:]), both))
        for rest, way, has in ((before, there, a), (after, on, b)):
            rest.pop()
            if has > both:
                rest.append((way, has - both))


def _taken(ways: Ways, ends: tuple[int, int], amount: int) -> list[tuple[Way, int]]:
    """Take so much from the ways between two nodes."""
    found = []
    while amount:
        way, has = ways[ends].pop()
        taken = min(has, amount)
        if has > taken:
            ways[ends].append((way, has - taken))
        found.append((way, taken))
        amount -= taken
    return found

"""Channels as NCCL searches them: rings over all ranks of a machine that together use no link beyond its rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from laconic.collective.program import Program
from laconic.collective.rings import rings
from laconic.errors import ProgramError
from laconic.network.graph import Graph

Order = tuple[int, ...]
Counts = NDArray[np.int64]


def channels(graph: Graph) -> list[Order]:
    """Return rings over all ranks that can be used at the same time, in both directions, each at the same rate: those
    with the largest product of their number and this rate. Rates are tried that some link of the graph has.

    Only links between ranks count; each of two directions has its own.
    """
    rates = _rates(graph)
    best: tuple[float, list[Order]] = (0.0, [])
    for rate in sorted({float(found) for found in rates[rates > 0]}, reverse=True):
        found = most_cycles(np.floor(rates / rate * (1 + 1e-9)).astype(np.int64))
        if len(found) * rate > best[0] * (1 + 1e-9):
            best = len(found) * rate, found
    return best[1]


def most_cycles(counts: Counts) -> list[Order]:
    """Return the most Hamiltonian cycles of a multigraph that use no edge more often than it is there.

    - `counts`: how many edges join each pair, a symmetric matrix.
    """
    size = len(counts)
    if size < 3:
        return [tuple(range(size))] * (int(counts[0, 1]) if size == 2 else 0)
    for number in range(int(counts.sum(axis=1).min()) // 2, 0, -1):
        found = _cycles(counts.copy(), number, (0,) * size)
        if found is not None:
            return found
    return []


def channel_rings(orders: Sequence[Order], hosts: int = 1) -> Program:
    """Return the all-reduce by these rings in both directions, each with an equal share of the vector.

    With several hosts every ring goes through all of them: it enters each at the order's first rank and leaves it from
    the last.
    """
    if not orders:
        raise ProgramError("no ring leads over all ranks of this machine by its own links")
    size = len(orders[0])
    joined = [[host * size + rank for host in range(hosts) for rank in order] for order in orders]
    return rings([*joined, *(order[::-1] for order in joined)], "channel_rings")


def _rates(graph: Graph) -> NDArray[np.float64]:
    """Return the rate between each pair of ranks, the smaller one where its directions differ."""
    rates = np.zeros((graph.size, graph.size))
    inside = (graph.ends < graph.size).all(axis=1)
    rates[tuple(graph.ends[inside].T)] = graph.bits_per_second[inside]
    return np.minimum(rates, rates.T)


def _cycles(left: Counts, number: int, least: Order) -> list[Order] | None:
    """Return so many cycles of the edges left, none of which comes before `least`, or nothing where there are not."""
    if number == 0:
        return []
    if left.sum(axis=1).min() < 2 * number:
        return None
    for order in _orders(left, [0]):
        if order < least:
            continue
        edges = list(zip(order, order[1:] + order[:1], strict=True))
        for a, b in edges:
            left[a, b] -= 1
            left[b, a] -= 1
        rest = _cycles(left, number - 1, order)
        if rest is not None:
            return [order, *rest]
        for a, b in edges:
            left[a, b] += 1
            left[b, a] += 1
    return None


def _orders(left: Counts, begun: list[int]) -> Iterator[Order]:
    """Yield all cycles through every rank that begin like this, each in one of its directions, in their order."""
    if len(begun) == len(left):
        if left[begun[-1], begun[0]] and begun[1] < begun[-1]:
            yield tuple(begun)
        return
    for rank in np.flatnonzero(left[begun[-1]]).tolist():
        if rank not in begun:
            yield from _orders(left, [*begun, rank])

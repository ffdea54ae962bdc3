"""Rings: every rank sends to its successor alone, so that each link carries the same bytes in every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.collective.compose import beside, gather_after_scatter, relabel, reverse
from laconic.collective.generators import generator
from laconic.collective.program import REDUCE, Program
from laconic.collective.relation import reduce_scatter


def ring_reduce_scatter(size: int, direction: int = 1) -> Program:
    """Return the reduce-scatter of a ring: in step t rank r sends the sum that it has of chunk r - 1 - t onwards, or of
    chunk r + 1 + t in the other direction."""
    step, rank = (grid.ravel() for grid in np.meshgrid(np.arange(size - 1), np.arange(size), indexing="ij"))
    to, chunk = (rank + direction) % size, (rank - direction * (1 + step)) % size
    rows = np.stack([step, rank, to, chunk, np.full(len(step), REDUCE)], axis=1)
    return Program.of("ring reduce-scatter", reduce_scatter(size, size), rows)


@generator("ring", row="ring_allreduce", paper="Patarasuk and Yuan, JPDC 2009")
def ring(size: int) -> Program:
    """A ring: p chunks are added up along it in p - 1 steps, and their sums are sent round in as many.

    Each rank sends 2(p-1)/p of its vector, the least that is possible, in 2(p-1) steps, to its successor alone.
    """
    return gather_after_scatter(ring_reduce_scatter(size), "ring", ring_reduce_scatter(size, -1))


@generator("two_rings", paper="Patarasuk and Yuan, JPDC 2009 (both directions of a link)")
def two_rings(size: int) -> Program:
    """Two rings in opposite directions, each on half of the vector: both directions of every link are used."""
    return rings([range(size), range(size - 1, -1, -1)], "two_rings")


def rings(orders: Sequence[Sequence[int]], name: str) -> Program:
    """Return an all-reduce by several rings over the same ranks, each in its own order and with an equal share."""
    one = ring(len(orders[0]))
    return beside([relabel(one, list(order)) for order in orders], [1.0] * len(orders), name)


@generator("ring_gather", relation="all_gather", paper="Patarasuk and Yuan, JPDC 2009")
def ring_gather(size: int) -> Program:
    """A ring that gathers: in each of p - 1 steps every rank sends on the block that it has received last."""
    return reverse(ring_reduce_scatter(size, -1), "ring_gather")


@generator("ring_scatter", relation="reduce_scatter", paper="Patarasuk and Yuan, JPDC 2009")
def ring_scatter(size: int) -> Program:
    """A ring that ends with the sum of block r at rank r, in p - 1 steps."""
    return ring_reduce_scatter(size)

"""All-to-alls: block j of rank i becomes block i of rank j."""

from __future__ import annotations

import numpy as np

from laconic.collective.compose import reverse
from laconic.collective.generators import generator
from laconic.collective.program import COPY, Program, Send
from laconic.collective.relation import all_gather, all_to_all


@generator("pairwise", row="alltoall_pairwise", relation="all_to_all", paper="Thakur et al., IJHPCA 2005")
def pairwise(size: int) -> Program:
    """In step t every rank sends one block to the rank t after it: p - 1 steps, no byte more than needed."""
    turn, rank = (grid.ravel() for grid in np.meshgrid(np.arange(1, size), np.arange(size), indexing="ij"))
    to = (rank + turn) % size
    rows = np.stack([turn, rank, to, rank * size + to, np.full(len(turn), COPY)], axis=1)
    return Program.of("pairwise", all_to_all(size), rows)


@generator("direct_exchange", relation="all_to_all", paper="Thakur et al., IJHPCA 2005")
def direct_exchange(size: int) -> Program:
    """Every rank sends every block at once to the rank that it is for: one step, in which all share the network."""
    rank, to = (grid.ravel() for grid in np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
    rows = np.stack([0 * rank, rank, to, rank * size + to, np.full(len(rank), COPY)], axis=1)
    return Program.of("direct_exchange", all_to_all(size), rows[rank != to])


@generator("bruck", relation="all_to_all", paper="Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 1997")
def bruck(size: int) -> Program:
    """In step s a block moves on by 2^s ranks if its way has that bit: ceil(log2 p) steps, for small blocks."""
    rows: list[Send] = []
    for step in range((size - 1).bit_length()):
        for source in range(size):
            for way in range(size):
                if way >> step & 1:
                    at = (source + way % 2**step) % size
                    rows.append((step, at, (at + 2**step) % size, source * size + (source + way) % size, COPY))
    return Program.of("bruck", all_to_all(size), rows)


@generator("bruck_gather", relation="all_gather", paper="Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 1997")
def bruck_gather(size: int) -> Program:
    """In each step a rank sends all blocks that it has to the rank at a doubled distance: ceil(log2 p) steps."""
    rows: list[Send] = []
    for step in range((size - 1).bit_length()):
        have = 2**step
        for rank in range(size):
            count = min(have, size - have)
            rows += [(step, rank, (rank - have) % size, (rank + k) % size, COPY) for k in range(count)]
    return Program.of("bruck_gather", all_gather(size, size), rows)


@generator("bruck_scatter", relation="reduce_scatter", paper="Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 1997")
def bruck_scatter(size: int) -> Program:
    """Sums of ever fewer blocks go to ranks at a halved distance: the gather's backwards, ceil(log2 p) steps."""
    return reverse(bruck_gather(size), "bruck_scatter")

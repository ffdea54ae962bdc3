"""The flows of collective operations: the bytes each sends, from which member of the group to which.

Separate virtual workers and symmetric workers (`virtual.symmetric`) are priced by the same flows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from laconic.network.flow import Flow
from laconic.values.wire import ring_rounds, wire_factor


def all_reduce(size: int, nbytes: float) -> Flow:
    """Return a ring all-reduce: each member sends 2(n-1)/n of the bytes to its successor, in 2(n-1) rounds."""
    return _ring(size, wire_factor("all_reduce", size) * nbytes, ring_rounds("all_reduce", size))


def all_gather(size: int, nbytes: float) -> Flow:
    """Return a ring all-gather: each member sends n-1 blocks of so many bytes to its successor, in n-1 rounds."""
    return _ring(size, wire_factor("all_gather", size) * nbytes, ring_rounds("all_gather", size))


def barrier(size: int) -> Flow:
    """Return a barrier: each member sends one byte to its successor, in the rounds of a ring all-reduce."""
    return _ring(size, 1.0, ring_rounds("all_reduce", size))


def all_to_all(block_bytes: ArrayLike) -> Flow:
    """Return an all-to-all: member a sends block [a][b] to member b, in one round; its own block stays."""
    blocks = np.asarray(block_bytes, dtype=float)
    size = len(blocks)
    sources, destinations = (~np.eye(size, dtype=bool)).nonzero()
    return Flow(sources, destinations, blocks[sources, destinations], 1)


def broadcast(size: int, root: int, nbytes: float) -> Flow:
    """Return a broadcast: all bytes are sent from the root down a binomial tree, as in gloo."""
    edges = [((a + root) % size, (b + root) % size) for a in range(size) for b in tree_children(a, size)]
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    return Flow(pairs[:, 0], pairs[:, 1], np.full(len(pairs), float(nbytes)), (size - 1).bit_length())


def message(nbytes: float) -> Flow:
    """Return a message: the first member sends all bytes to the second."""
    return Flow(np.array([0]), np.array([1]), np.array([float(nbytes)]), 1)


def _ring(size: int, nbytes: float, rounds: int) -> Flow:
    places = np.arange(size if size > 1 else 0)
    return Flow(places, (places + 1) % max(size, 1), np.full(len(places), float(nbytes)), rounds)


def tree_children(place: int, size: int) -> list[int]:
    """Return the members to which a member forwards a broadcast, counted from the root: before round i, 2^i have it."""
    return [place + 2**i for i in range(size.bit_length()) if place < 2**i and place + 2**i < size]

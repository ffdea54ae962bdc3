"""The torus: a grid with wrap-around, as a graph to gossip over and as a network of links with capacities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import StrategyError
from laconic.literals import shown
from laconic.registry import knob, technique
from laconic.topology.base import Topology
from laconic.topology.hamiltonian import two_cycles
from laconic.topology.mixing import Mixing, metropolis

Links = NDArray[np.int64]


@technique(
    "torus",
    aliases=["grid", "torus2d"],
    paper="Adiga et al., IBM JRD 49, 2005 (Blue Gene/L); Xiao and Boyd, Systems and Control Letters 2004 (weights)",
)
@dataclass(frozen=True)
class Torus(Topology):
    """A grid with wrap-around in each of its dimensions: two neighbours in each, and no switches.

    Without `sides` it has two dimensions, as square as the number of workers allows; with a prime number it is a ring.
    The same graph has Metropolis–Hastings weights, with which sentences gossip, and capacities: `links`, `capacities`
    and `load` are what the flow model of a network takes, with traffic routed dimension by dimension (the first side's
    first), and both ways where half a side is to go. Reading chosen: the last coordinate counts fastest; a side of two
    has one link in each direction, one of one has none. Runs on virtual workers price gossip on their own network.
    """

    sides: tuple[int, ...] = knob((), low=1, doc="nodes along each dimension; empty: two that are as equal as can be")

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the number of nodes along each dimension."""
        if not self.sides:
            rows = next(r for r in range(math.isqrt(size), 0, -1) if size % r == 0)
            return rows, size // rows
        if math.prod(self.sides) != size:
            raise StrategyError(
                f"torus({shown(self.sides)}) has {math.prod(self.sides)} nodes, and there are {size} workers; write "
                "sides whose product is that number, or none"
            )
        return self.sides

    def lay_out(self, size: int, seed: int) -> Mixing:
        return Mixing((metropolis(size, self.links(size).tolist()),))

    def links(self, size: int) -> Links:
        """Return the directed links as rows (from, to), by node, dimension and direction, onwards first."""
        ends, numbers = self._ends(size)
        nodes = np.broadcast_to(np.arange(size)[:, None, None], ends.shape)
        return np.stack([nodes[numbers >= 0], ends[numbers >= 0]], axis=1)

    def capacities(self, size: int, bits_per_second: float) -> NDArray[np.float64]:
        """Return the bytes per second of every directed link, where each has this rate."""
        return np.full(len(self.links(size)), bits_per_second / 8)

    def load(self, size: int, sources: ArrayLike, destinations: ArrayLike, nbytes: ArrayLike) -> NDArray[np.float64]:
        """Return the bytes on every directed link of these transfers, routed dimension by dimension."""
        shape, (ends, numbers) = self.shape(size), self._ends(size)
        at, to = (list(np.unravel_index(np.asarray(nodes, dtype=np.int64), shape)) for nodes in (sources, destinations))
        amount, totals = np.broadcast_to(nbytes, at[0].shape).astype(float), np.zeros(numbers.max() + 1)
        for dimension, side in enumerate(shape):
            onwards = (to[dimension] - at[dimension]) % side
            halfway = (2 * onwards == side) & (side > 2)
            part = np.where(halfway, amount / 2, amount)
            for direction, hops in enumerate((onwards, (side - onwards) % side)):
                shorter = 2 * hops <= side if side > 2 or direction == 0 else np.zeros_like(halfway)
                node, left = np.ravel_multi_index(at, shape), np.where(shorter, hops, 0)
                while (going := left > 0).any():
                    np.add.at(totals, numbers[node[going], dimension, direction], part[going])
                    node[going] = ends[node[going], dimension, direction]
                    left = left - going
            at[dimension] = to[dimension]
        return totals

    def hamiltonian_cycles(self, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return two cycles through all nodes that share no link, of a torus with two sides of at least three."""
        shape = self.shape(size)
        if len(shape) != 2 or min(shape) < 3:
            raise StrategyError(f"a torus of {shown(shape)} has no two such cycles here; give two sides of at least 3")
        return two_cycles(*shape)

    def _ends(self, size: int) -> tuple[Links, Links]:
        """Return the neighbour of each node by dimension and direction, and the number of that link (-1: none)."""
        shape = self.shape(size)
        nodes = np.arange(size).reshape(shape)
        steps = product(range(len(shape)), (-1, 1))  # rolled back by one, the next node stands in a node's place
        ends = np.stack([np.roll(nodes, step, axis=d).reshape(-1) for d, step in steps], axis=1).reshape(size, -1, 2)
        there = np.array([(side > 1, side > 2) for side in shape])
        numbers = np.full(ends.shape, -1)
        exists = np.broadcast_to(there, ends.shape)
        numbers[exists] = np.arange(int(exists.sum()))
        return ends, numbers

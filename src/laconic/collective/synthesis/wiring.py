"""Wiring: which ranks can send to which without another rank between them, and which of these ways share a link."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.network.graph import Graph

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Wiring:
    """Direct ways between ranks, over a link or through switches.

    - `size`: the number of ranks.
    - `ends`: a row (from, to) for each way.
    - `latency_seconds`: of each way.
    - `limits`: the ways that share a link or a port, with its bytes per second; a link of two ranks has one way.
    """

    size: int
    ends: Integers
    latency_seconds: Numbers
    limits: tuple[tuple[Integers, float], ...]

    @cached_property
    def rates(self) -> Numbers:
        """The bytes per second of each way where nothing else is sent."""
        rates = np.full(len(self.ends), np.inf)
        for members, rate in self.limits:
            rates[members] = np.minimum(rates[members], rate)
        return rates

    @cached_property
    def number(self) -> dict[tuple[int, int], int]:
        """The number of the way between two ranks."""
        return {(int(a), int(b)): number for number, (a, b) in enumerate(self.ends)}

    @cached_property
    def into(self) -> list[list[int]]:
        """The ways that lead to each rank."""
        return [np.flatnonzero(self.ends[:, 1] == rank).tolist() for rank in range(self.size)]

    @cached_property
    def hops(self) -> Integers:
        """How many ways lie between two ranks, at least; a row for each source, and -1 where no way leads."""
        distance = np.full((self.size, self.size), -1)
        distance[np.arange(self.size), np.arange(self.size)] = 0
        joined = np.zeros((self.size, self.size), dtype=bool)
        joined[self.ends[:, 0], self.ends[:, 1]] = True
        reached = np.eye(self.size, dtype=bool)
        for hop in range(1, self.size):
            new = (reached @ joined) & (distance < 0)
            if not new.any():
                break
            distance[new] = hop
            reached |= new
        return distance


def wiring(graph: Graph, kept: Collection[tuple[int, int]] | None = None) -> Wiring:
    """Return the direct ways of a graph, all or those between the pairs of ranks that are kept."""
    ends: list[tuple[int, int]] = []
    latencies: list[float] = []
    members: dict[int, list[int]] = {}
    for a, b in sorted(kept) if kept is not None else _pairs(graph.size):
        way = _direct_way(graph, a, b)
        if way is None:
            if kept is not None:
                raise LaconicError(f"no way leads from rank {a} to rank {b} without another rank between them")
            continue
        for link in way:
            members.setdefault(link, []).append(len(ends))
        ends.append((a, b))
        latencies.append(float(graph.latency_seconds[way].sum()))
    limits: dict[tuple[int, ...], float] = {}
    for link, ways in sorted(members.items()):
        key, rate = tuple(ways), float(graph.capacities[link])
        limits[key] = min(rate, limits.get(key, np.inf))
    return Wiring(
        graph.size,
        np.asarray(ends, dtype=np.int64).reshape(-1, 2),
        np.asarray(latencies, dtype=float),
        tuple((np.asarray(ways), rate) for ways, rate in limits.items()),
    )


def _pairs(size: int) -> list[tuple[int, int]]:
    return [(a, b) for a in range(size) for b in range(size) if a != b]


def _direct_way(graph: Graph, a: int, b: int) -> list[int] | None:
    try:
        way = graph.routes([a], [b]).links[0]
    except LaconicError:
        return None
    way = way[way >= 0]
    return way.tolist() if (graph.ends[way[:-1], 1] >= graph.size).all() else None

"""Networks of any shape: ranks and switches, joined by directed links with their own rates and latencies."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import LaconicError
from laconic.network.routes import Routes, Vector


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed links between nodes, of which the first `size` are ranks and the others switches.

    Transfers take the way with the fewest links, of these the one with the least latency, of these the widest.

    - `size`: the number of ranks.
    - `ends`: a row (from, to) for each link; several links may join the same nodes only as one with their sum.
    - `bits_per_second`: the rate of each link.
    - `latency_seconds`: the latency of each link.
    """

    size: int
    ends: NDArray[np.int64]
    bits_per_second: Vector
    latency_seconds: Vector
    _last_links: dict[int, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        ends = np.asarray(self.ends, dtype=np.int64).reshape(-1, 2)
        count = len(ends)
        object.__setattr__(self, "ends", ends)
        for name in ("bits_per_second", "latency_seconds"):
            object.__setattr__(self, name, np.broadcast_to(np.asarray(getattr(self, name), dtype=float), count).copy())
        if self.size < 1 or (count and ends.min() < 0) or (ends[:, 0] == ends[:, 1]).any():
            raise LaconicError("a graph has at least one rank, and its links join two different nodes")
        if len(np.unique(ends, axis=0)) < count:
            raise LaconicError(
                "two links of a graph join the same nodes in the same direction; give one with their sum"
            )
        if (
            not (np.isfinite(self.bits_per_second) & (self.bits_per_second > 0)).all()
            or (self.latency_seconds < 0).any()
        ):
            raise LaconicError("links have positive and finite rates, and latencies that are not negative")

    @classmethod
    def of(
        cls, size: int, links: Iterable[tuple[int, int, float]], latency_seconds: float = 0.0, duplex: bool = True
    ) -> Graph:
        """Return a graph of links (one end, other end, bits per second), in both directions where `duplex`."""
        rates: dict[tuple[int, int], float] = {}
        for a, b, rate in links:
            for ends in ((a, b), (b, a)) if duplex else ((a, b),):
                rates[ends] = rates.get(ends, 0.0) + rate
        return cls(
            size, np.array(sorted(rates)), np.array([rates[e] for e in sorted(rates)]), np.array(latency_seconds)
        )

    @property
    def nodes(self) -> int:
        """The number of ranks and switches."""
        return max(self.size, int(self.ends.max()) + 1 if len(self.ends) else 0)

    @cached_property
    def capacities(self) -> Vector:
        """The bytes per second of every link."""
        return self.bits_per_second / 8

    @cached_property
    def leaving(self) -> list[list[int]]:
        """The links that leave each node."""
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for number, (source, _) in enumerate(self.ends.tolist()):
            found[source].append(number)
        return found

    def without(self, links: Iterable[tuple[int, int]]) -> Graph:
        """Return the graph without some links, in both directions."""
        gone = {ends for a, b in links for ends in ((a, b), (b, a))}
        kept = np.array([tuple(ends) not in gone for ends in self.ends.tolist()], dtype=bool)
        return Graph(self.size, self.ends[kept], self.bits_per_second[kept], self.latency_seconds[kept])

    def among(self, ranks: Sequence[int]) -> Graph:
        """Return the graph of some ranks alone, numbered in this order, with the switches that there are."""
        number = {node: k for k, node in enumerate([*ranks, *range(self.size, self.nodes)])}
        kept = np.array([a in number and b in number for a, b in self.ends.tolist()], dtype=bool)
        ends = np.array([(number[a], number[b]) for a, b in self.ends[kept].tolist()], dtype=np.int64).reshape(-1, 2)
        return Graph(len(ranks), ends, self.bits_per_second[kept], self.latency_seconds[kept])

    def routes(self, sources: ArrayLike, destinations: ArrayLike) -> Routes:
        """Return the ways between pairs of ranks, by the links of each."""
        pairs = list(zip(np.atleast_1d(sources).tolist(), np.atleast_1d(destinations).tolist(), strict=True))
        ways = [self._way(source, destination) for source, destination in pairs]
        table = np.full((len(ways), max(map(len, ways), default=0)), -1, dtype=np.int64)
        for row, way in enumerate(ways):
            table[row, : len(way)] = way
        latency = (
            np.where(table >= 0, self.latency_seconds[table], 0.0).sum(axis=1) if table.size else np.zeros(len(ways))
        )
        return Routes(table, latency)

    def _way(self, source: int, destination: int) -> list[int]:
        if source not in self._last_links:
            self._last_links[source] = self._tree(source)
        last = self._last_links[source]
        way = []
        while destination != source:
            link = int(last[destination])
            if link < 0:
                raise LaconicError(f"no way leads from node {source} to node {destination}")
            way.append(link)
            destination = int(self.ends[link, 0])
        return way[::-1]

    def _tree(self, source: int) -> NDArray[np.int64]:
        """Return the last link of the best way to every node from this one."""
        best: dict[int, tuple[int, float, float]] = {source: (0, 0.0, -math.inf)}
        last = np.full(self.nodes, -1, dtype=np.int64)
        queue: list[Any] = [(best[source], source)]
        while queue:
            cost, node = heapq.heappop(queue)
            if cost > best[node]:
                continue
            for link in self.leaving[node]:
                to = int(self.ends[link, 1])
                narrow = max(cost[2], -float(self.bits_per_second[link]))
                found = (cost[0] + 1, cost[1] + float(self.latency_seconds[link]), narrow)
                if to not in best or found < best[to]:
                    best[to], last[to] = found, link
                    heapq.heappush(queue, (found, to))
        return last

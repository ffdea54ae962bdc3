"""Networks for virtual workers: a tree of levels, each with its own rate and latency.

One level is a switch: every worker has a link up and a link down. More levels group workers into machines, sites and so
on, whose members share the links of their unit. What crosses a level loads the links of both units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.engine.virtual.units import bits_per_second, seconds
from laconic.errors import LaconicError


@dataclass(frozen=True)
class Level:
    """Units of `workers` neighbours behind one duplex link; `latency_seconds` one way for what crosses it outermost."""

    workers: int
    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 < self.bits_per_second < math.inf or self.latency_seconds < 0:
            raise LaconicError(f"a level has at least one worker, a finite rate and no negative latency: {self}")


@dataclass(frozen=True)
class Network:
    """Levels inner to outer; the first is a worker's own link (`workers=1`).

    `lanes` is how many collectives of one group run at a time, the others waiting in order: gloo's threads are two.
    """

    size: int
    levels: tuple[Level, ...]
    lanes: int = 2

    def __post_init__(self) -> None:
        sizes = [level.workers for level in self.levels]
        if not sizes or sizes[0] != 1:
            raise LaconicError("a network begins with the workers' own links: a first level with workers=1")
        if any(b % a for a, b in pairwise(sizes)):
            raise LaconicError(f"each level joins whole units of the one inside it, not {sizes}")

    @classmethod
    def flat(cls, size: int, bits_per_second: float, latency_seconds: float = 0.0, lanes: int = 2) -> Network:
        """Everyone on one switch."""
        return cls(size, (Level(1, bits_per_second, latency_seconds),), lanes)

    @classmethod
    def read(cls, size: int, table: Mapping[str, Any]) -> Network:
        """From a TOML table: `levels = [{workers = 1, bandwidth = "1Gbit", latency = "50us"}, …]`."""
        levels = [
            Level(int(row.get("workers", 1)), bits_per_second(row["bandwidth"]), seconds(row.get("latency", 0)))
            for row in table["levels"]
        ]
        return cls(size, tuple(levels), int(table.get("lanes", 2)))

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """Bytes per second of every directed link."""
        parts = [np.full(2 * -(-self.size // level.workers), level.bits_per_second / 8) for level in self.levels]
        return np.concatenate(parts)

    @cached_property
    def _offsets(self) -> list[int]:
        counts = [2 * -(-self.size // level.workers) for level in self.levels]
        return [sum(counts[:k]) for k in range(len(counts))]

    def load(
        self, sources: Sequence[int], destinations: Sequence[int], nbytes: Sequence[float]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Links and bytes on each of them for these transfers, and the longest latency among them."""
        source, destination = np.asarray(sources, dtype=np.int64), np.asarray(destinations, dtype=np.int64)
        amount = np.asarray(nbytes, dtype=float)
        totals = np.zeros(len(self.capacities))
        latency = 0.0
        for level, offset in zip(self.levels, self._offsets, strict=True):
            up, down = source // level.workers, destination // level.workers
            crosses = (up != down) & (amount >= 0)
            if crosses.any():
                np.add.at(totals, offset + 2 * up[crosses], amount[crosses])
                np.add.at(totals, offset + 2 * down[crosses] + 1, amount[crosses])
                latency = level.latency_seconds
        links = np.flatnonzero(totals)
        return links, totals[links], latency

"""Networks for virtual workers: a tree of levels, each with its own rate and latency.

One level is a switch: every worker has a link up and a link down. More levels group workers into machines, sites and so
on, whose members share the links of their unit. What crosses a level loads the links of both units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from laconic.errors import LaconicError
from laconic.network.flow import Flow
from laconic.network.fluid import Job
from laconic.units import bits_per_second, seconds
from laconic.values.profile import LinkTimes, OperationTimes, Profile

NO_TIME_AT_ALL = 1e30
"""Bits per second at which nothing takes any time."""

CARRIED_BY = {"reduce_scatter": "all_to_all", "barrier": "all_reduce"}
"""Operations that take what another one was measured to take."""


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
    Where collectives were `measured`, alone they take the measured time; what others at the same time must wait for
    (processors that all workers share) goes over one more link, which all of them use.
    """

    size: int
    levels: tuple[Level, ...]
    lanes: int = 2
    measured: LinkTimes | None = None
    links: Mapping[int, float] = field(default_factory=dict)  # workers whose own link has another rate, in bits/s
    trees: bool = False  # all-reduces go up and down double binary trees where that has fewer rounds than a ring

    def __post_init__(self) -> None:
        sizes = [level.workers for level in self.levels]
        if not sizes or sizes[0] != 1:
            raise LaconicError("a network begins with the workers' own links: a first level with workers=1")
        if self.lanes < 1:
            raise LaconicError(f"a group needs at least one lane for its collectives, not {self.lanes}")
        for worker, rate in self.links.items():
            if not 0 <= worker < self.size or not 0 < rate < math.inf:
                raise LaconicError(
                    f"a link of {rate:g} bit/s for worker {worker} makes no sense: workers are 0 to {self.size - 1}, "
                    f"rates positive and finite"
                )
        if any(b % a for a, b in pairwise(sizes)):
            raise LaconicError(f"each level joins whole units of the one inside it, not {sizes}")

    @classmethod
    def flat(
        cls, size: int, bits_per_second: float | Sequence[float], latency_seconds: float = 0.0, lanes: int = 2
    ) -> Network:
        """Everyone on one switch; with several rates, each worker's link has its own."""
        if isinstance(bits_per_second, int | float):
            return cls(size, (Level(1, bits_per_second, latency_seconds),), lanes)
        if len(bits_per_second) != size:
            raise LaconicError(f"{len(bits_per_second)} rates do not fit {size} workers: give one, or one for each")
        links = dict(enumerate(bits_per_second))
        return cls(size, (Level(1, max(bits_per_second), latency_seconds),), lanes, links=links)

    @classmethod
    def read(cls, size: int, table: Mapping[str, Any]) -> Network:
        """From a TOML table: `levels = [{workers = 1, bandwidth = "1Gbit", latency = "50us"}, …]`, and perhaps
        `links = {"3" = "100Mbit"}` for workers whose own link has another rate."""
        levels = [
            Level(int(row.get("workers", 1)), bits_per_second(row["bandwidth"]), seconds(row.get("latency", 0)))
            for row in table["levels"]
        ]
        links = {int(worker): bits_per_second(rate) for worker, rate in table.get("links", {}).items()}
        return cls(size, tuple(levels), int(table.get("lanes", 2)), links=links)

    @classmethod
    def from_profile(cls, profile: Profile, workers: int | None = None) -> Network:
        """The network on which the profile was measured, with as many workers."""
        links = profile.links
        if links is None:
            raise LaconicError("this profile has no links: give --network, or measure again with `laconic profile`")
        if workers not in (None, profile.workers):
            raise LaconicError(
                f"the profile's links were measured among {profile.workers} workers, not {workers}: profile with "
                f"--workers {workers}, or describe a network with --network"
            )
        rate = links.bits_per_second or NO_TIME_AT_ALL
        return cls(profile.workers, (Level(1, rate, links.delay_seconds),), measured=links)

    def free(self) -> Network:
        """The same shape, where talking takes no time."""
        levels = tuple(Level(level.workers, NO_TIME_AT_ALL) for level in self.levels)
        return replace(self, levels=levels, measured=None, links={})

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """Bytes per second of every directed link."""
        parts = [np.full(2 * -(-self.size // level.workers), level.bits_per_second / 8) for level in self.levels]
        for worker, rate in self.links.items():
            parts[0][2 * worker : 2 * worker + 2] = rate / 8
        return np.concatenate([*parts, [self._shared_rate]] if self.measured else parts)

    @property
    def _shared_rate(self) -> float:
        """Of the link on which measured time is shared: a second's worth is what a worker's own link carries in it."""
        return self.levels[0].bits_per_second / 8

    @cached_property
    def _offsets(self) -> list[int]:
        counts = [2 * -(-self.size // level.workers) for level in self.levels]
        return [sum(counts[:k]) for k in range(len(counts))]

    def job(
        self,
        what: str,
        example: Any,
        flow: Flow,
        group: Sequence[int],
        finished: Callable[[float], None],
        lane: Hashable = None,
    ) -> Job:
        """An operation among these ranks, of which `example` is a member's tensor, as work for the fluid.

        Where such operations were measured, it takes as long as it did alone, delays others as it did, and goes on
        beside computing as it did.
        """
        ranks = np.asarray(group, dtype=np.int64)
        links, load_bytes, latency = self.load(ranks[flow.sources], ranks[flow.destinations], flow.nbytes)
        times = self._times(what, example) if len(links) else None
        if times is None:
            return Job(links, load_bytes, self.rounds(what, flow) * latency, finished, lane)
        point = times.at(flow.most_sent_bytes)
        shared_bytes = point.shared_seconds * self._shared_rate
        if shared_bytes:
            links, load_bytes = np.append(links, len(self.capacities) - 1), np.append(load_bytes, shared_bytes)
        fastest = 1 / point.alone_seconds if point.alone_seconds else math.inf
        return Job(links, load_bytes, 0.0, finished, lane, fastest=fastest, pace=point.pace)

    def rounds(self, what: str, flow: Flow) -> int:
        """How often an operation pays the latency; as NCCL does, trees send a ring's bytes (Sanders et al., 2009)."""
        if not self.trees or not what.startswith("all_reduce"):
            return flow.rounds
        return min(flow.rounds, 2 * (len(flow.sources) - 1).bit_length())

    def _times(self, what: str, example: Any) -> OperationTimes | None:
        if self.measured is None:
            return None
        name = what.split()[0]
        tensor = example[0] if isinstance(example, tuple) else example
        dtype = "float32" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        return self.measured.find(CARRIED_BY.get(name, name), dtype)

    def load(
        self, sources: ArrayLike, destinations: ArrayLike, nbytes: ArrayLike
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

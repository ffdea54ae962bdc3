"""Networks for virtual workers: a tree of levels, each with its own rate and latency.

One level is a switch: every worker has a link up and a link down. More levels group workers into units
(hosts, sites and so on), whose members share the links of their unit. A transfer that crosses a level loads the links
of both units.
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
from laconic.network.fluid import Fluid, Job
from laconic.network.routes import Routes
from laconic.units import bits_per_second, seconds
from laconic.values.profile import LinkTimes, OperationTimes, Profile

UNLIMITED_BITS_PER_SECOND = 1e30
"""A rate in bits per second at which transfers take practically no time."""

MEASURED_AS = {"reduce_scatter": "all_to_all", "barrier": "all_reduce"}
"""Operations that take the measured time of another one."""


@dataclass(frozen=True)
class Level:
    """A level of a network: units of neighbouring workers, each behind one duplex link.

    - `workers`: how many neighbouring workers share a unit (a machine, a site); 1 is a worker's own link.
    - `bits_per_second`: the rate of each unit's link, in either direction.
    - `latency_seconds`: the one-way latency of transfers for which this is the outermost level crossed.
    """

    workers: int
    bits_per_second: float
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1 or not 0 < self.bits_per_second < math.inf or self.latency_seconds < 0:
            raise LaconicError(f"a level has at least one worker, a finite rate and no negative latency: {self}")


@dataclass(frozen=True)
class LinkChange:
    """A worker's own link that has another rate, in both directions, from some time on.

    - `at_seconds`: the virtual time.
    - `worker`: the worker's rank.
    - `bits_per_second`: the new rate.
    """

    at_seconds: float
    worker: int
    bits_per_second: float

    def __post_init__(self) -> None:
        if not 0 <= self.at_seconds < math.inf or self.worker < 0 or not 0 < self.bits_per_second < math.inf:
            raise LaconicError(f"a link changes at a time from 0 on, to a positive and finite rate: {self}")


@dataclass(frozen=True)
class Network:
    """A network as levels from the inner to the outer; the first is a worker's own link.

    `Network.flat(8, 1e9, 50e-6)` is one switch, `Network(8, (Level(1, 1e10), Level(4, 2e8, 0.025)))` two sites of four.

    - `size`: the number of workers, servers' nodes included.
    - `levels`: a `laconic.Level` each, the first with `workers=1`.
    - `lanes`: how many collectives of one group run at a time, while others wait in order: gloo has two threads.
    - `measured`: times of collectives. Each alone takes its measured time; the part of it that delays others at the
      same time (on processors that all workers share) loads one more link, which all of them use.
    - `links`: the rates, in bits per second, of workers whose own link has another one, by worker.
    - `pairs`: the rates, in bits per second, of pairs of workers between which there is a slower way, by pair (any
      order), as across cities. Each direction of a pair's way is a link of its own beside those of the levels.
    - `trees`: all-reduces use double binary trees where these have fewer rounds than a ring.
    - `changes`: links whose rates change while virtual workers run, a `laconic.LinkChange` each; prices are those of
      the network as it begins.
    """

    size: int
    levels: tuple[Level, ...]
    lanes: int = 2
    measured: LinkTimes | None = None
    links: Mapping[int, float] = field(default_factory=dict)
    trees: bool = False
    changes: tuple[LinkChange, ...] = ()
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)

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
        for (a, b), rate in self.pairs.items():
            if a == b or not 0 <= min(a, b) <= max(a, b) < self.size or not 0 < rate < math.inf:
                raise LaconicError(
                    f"a way of {rate:g} bit/s between workers {a} and {b} makes no sense: they are two of 0 to "
                    f"{self.size - 1}, and rates are positive and finite"
                )
        if any(change.worker >= self.size for change in self.changes):
            raise LaconicError(f"the link of a worker changes that is none of 0 to {self.size - 1}")
        if any(b % a for a, b in pairwise(sizes)):
            raise LaconicError(f"each level joins whole units of the one inside it, not {sizes}")

    @classmethod
    def flat(
        cls, size: int, bits_per_second: float | Sequence[float], latency_seconds: float = 0.0, lanes: int = 2
    ) -> Network:
        """Return a network of one switch.

        - `size`: the number of workers.
        - `bits_per_second`: the rate of all links, or one for each worker.
        - `latency_seconds`: one way between any two.
        - `lanes`: how many collectives of one group run at a time.
        """
        if isinstance(bits_per_second, int | float):
            return cls(size, (Level(1, bits_per_second, latency_seconds),), lanes)
        if len(bits_per_second) != size:
            raise LaconicError(f"{len(bits_per_second)} rates do not fit {size} workers: give one, or one for each")
        links = dict(enumerate(bits_per_second))
        return cls(size, (Level(1, max(bits_per_second), latency_seconds),), lanes, links=links)

    @classmethod
    def read(cls, size: int, table: Mapping[str, Any]) -> Network:
        """Read a network from a TOML table like `levels = [{workers = 1, bandwidth = "1Gbit", latency = "50us"}, …]`.

        It may hold `links = {"3" = "100Mbit"}` for workers whose own link has another rate, `pairs = {"0-3" = "2Mbit"}`
        for pairs with a slower way between them, and `changes = [{at = "10s", worker = 3, bandwidth = "25Mbit"}]` for
        links that get another rate later.
        """
        levels = [
            Level(int(row.get("workers", 1)), bits_per_second(row["bandwidth"]), seconds(row.get("latency", 0)))
            for row in table["levels"]
        ]
        links = {int(worker): bits_per_second(rate) for worker, rate in table.get("links", {}).items()}
        changes = tuple(
            LinkChange(seconds(row["at"]), int(row["worker"]), bits_per_second(row["bandwidth"]))
            for row in table.get("changes", ())
        )
        pairs = {_pair(text): bits_per_second(rate) for text, rate in table.get("pairs", {}).items()}
        return cls(size, tuple(levels), int(table.get("lanes", 2)), links=links, changes=changes, pairs=pairs)

    @classmethod
    def from_profile(cls, profile: Profile, workers: int | None = None) -> Network:
        """Return the network on which the profile was measured, which has the same number of workers."""
        links = profile.links
        if links is None:
            raise LaconicError("this profile has no links: give --network, or measure again with `laconic profile`")
        if workers not in (None, profile.workers):
            raise LaconicError(
                f"the profile's links were measured among {profile.workers} workers, not {workers}: profile with "
                f"--workers {workers}, or describe a network with --network"
            )
        rate = links.bits_per_second or UNLIMITED_BITS_PER_SECOND
        return cls(profile.workers, (Level(1, rate, links.delay_seconds),), measured=links)

    def free(self) -> Network:
        """Return a network of the same shape on which communication takes no time."""
        levels = tuple(Level(level.workers, UNLIMITED_BITS_PER_SECOND) for level in self.levels)
        return replace(self, levels=levels, measured=None, links={}, changes=(), pairs={})

    @property
    def host_size(self) -> int:
        """How many neighbouring workers share the innermost unit of several: a host, where the network has levels."""
        return self.levels[1].workers if len(self.levels) > 1 else self.size

    @cached_property
    def capacities(self) -> NDArray[np.float64]:
        """The bytes per second of every directed link."""
        parts = [np.full(2 * -(-self.size // level.workers), level.bits_per_second / 8) for level in self.levels]
        for worker, rate in self.links.items():
            parts[0][2 * worker : 2 * worker + 2] = rate / 8
        parts.append(np.repeat([rate / 8 for rate in self.pairs.values()], 2))
        return np.concatenate([*parts, [self._shared_rate]] if self.measured else parts)

    def fluid(self) -> Fluid:
        """Return the fluid model of this network's links, with their changes to come."""
        made = Fluid(self.capacities, self.lanes)
        for change in self.changes:
            own = (2 * change.worker, 2 * change.worker + 1)
            made.change(change.at_seconds, own, change.bits_per_second / 8)
        return made

    @property
    def _shared_rate(self) -> float:
        """The rate of the link on which measured time is shared: as many bytes a second as a worker's own link."""
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
        """Return the job for the fluid model of an operation among these ranks; `example` is one member's tensor.

        Where such operations were measured, the job takes the time measured alone, delays others as measured, and
        progresses beside computing as measured.
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
        """Return how often the latency is paid; as in NCCL, trees send a ring's bytes (Sanders et al., 2009)."""
        if not self.trees or not what.startswith("all_reduce"):
            return flow.rounds
        return min(flow.rounds, 2 * (len(flow.sources) - 1).bit_length())

    def _times(self, what: str, example: Any) -> OperationTimes | None:
        if self.measured is None:
            return None
        name = what.split()[0]
        tensor = example[0] if isinstance(example, tuple) else example
        dtype = "float32" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        return self.measured.find(MEASURED_AS.get(name, name), dtype)

    def routes(self, sources: ArrayLike, destinations: ArrayLike) -> Routes:
        """Return the ways between pairs of workers: up and down the links of each level that they cross."""
        source, destination = np.asarray(sources, dtype=np.int64), np.asarray(destinations, dtype=np.int64)
        table = np.full((len(source), 2 * len(self.levels)), -1, dtype=np.int64)
        latency = np.zeros(len(source))
        for column, (level, offset) in enumerate(zip(self.levels, self._offsets, strict=True)):
            up, down = source // level.workers, destination // level.workers
            crosses = up != down
            table[:, 2 * column] = np.where(crosses, offset + 2 * up, -1)
            table[:, 2 * column + 1] = np.where(crosses, offset + 2 * down + 1, -1)
            latency[crosses] = level.latency_seconds
        if self.pairs:
            table = np.column_stack([table, self._pair_links[source, destination]])
        return Routes(table, latency)

    @cached_property
    def _pair_links(self) -> NDArray[np.int64]:
        """The number of the link from one worker to another that a pair has for itself; -1: it has none."""
        numbers, first = np.full((self.size, self.size), -1), sum(2 * -(-self.size // x.workers) for x in self.levels)
        for k, (a, b) in enumerate(self.pairs):
            numbers[a, b], numbers[b, a] = first + 2 * k, first + 2 * k + 1
        return numbers

    def load(
        self, sources: ArrayLike, destinations: ArrayLike, nbytes: ArrayLike
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Return the links these transfers use, the bytes on each link, and the longest latency among the transfers."""
        routes = self.routes(sources, destinations)
        totals = routes.load_bytes(np.asarray(nbytes, dtype=float), len(self.capacities))
        links = np.flatnonzero(totals)
        return links, totals[links], float(routes.latency_seconds.max(initial=0.0))


def _pair(text: str) -> tuple[int, int]:
    """Return the two workers that a text such as `0-3` names."""
    try:
        a, b = text.split("-")
        return int(a), int(b)
    except ValueError:
        raise LaconicError(f"{text!r} names no pair of workers; write two numbers, as in 0-3") from None

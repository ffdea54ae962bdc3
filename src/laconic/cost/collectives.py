"""The times of collectives on a network, for many messages at once.

They are the same as on the virtual engine (`network.levels`): measured times where operations were measured, otherwise
rounds that each pay the latency, and bytes over the busiest link.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from laconic.collective import flows
from laconic.network.network_tree import MEASURED_AS, Network
from laconic.values.profile import OperationTimes
from laconic.values.wire import wire_factor

Vector = NDArray[np.float64]

_OPERATIONS = {
    "reduce": "all_reduce",
    "gather": "all_gather",
    "scatter": "all_to_all",
    "broadcast": "broadcast",
    "merge": "broadcast",
    "halves": "all_to_all",
}


@dataclass(frozen=True)
class TransferTimes:
    """The times of several messages: of each one alone, and for how long each occupies what all of them share.

    `pace` is how fast they progress, relative to alone, while all workers compute.
    """

    alone_seconds: Vector
    shared_seconds: Vector
    pace: float

    @classmethod
    def zero(cls, count: int) -> TransferTimes:
        """Return the times of messages that take no time."""
        return cls(np.zeros(count), np.zeros(count), 1.0)

    def select(self, which: NDArray[np.int64]) -> TransferTimes:
        """Return the times of some of these messages, in the given order."""
        return TransferTimes(self.alone_seconds[which], self.shared_seconds[which], self.pace)

    def __add__(self, other: TransferTimes) -> TransferTimes:
        """Return the times of both messages of each pair together: they share the network, and both are waited for."""
        mine, theirs = self.alone_seconds.sum(), other.alone_seconds.sum()
        pace = (self.pace * mine + other.pace * theirs) / (mine + theirs) if mine + theirs else 1.0
        shared = self.shared_seconds + other.shared_seconds
        return TransferTimes(np.maximum(np.maximum(self.alone_seconds, other.alone_seconds), shared), shared, pace)


class CollectiveCosts:
    """Prices collectives among some workers on a network."""

    def __init__(self, network: Network, workers: int) -> None:
        self.network, self.workers = network, workers
        self._cost_line = cache(self._fitted)

    @property
    def lanes(self) -> int:
        return self.network.lanes

    def carry(self, meets: str, payload_bytes: Vector, dtype: str = "float32") -> TransferTimes:
        """Return what combining payloads of so many bytes of every worker takes, by how they meet (`meets`)."""
        operation = _OPERATIONS[meets]
        if self.workers < 2:
            return TransferTimes.zero(len(payload_bytes))
        factor = wire_factor(operation, self.workers)
        measured = self._measured(operation, dtype)
        if measured is not None:
            once = _measured(measured, factor * payload_bytes)
        else:
            startup, rate = self._cost_line(operation)
            once = TransferTimes(startup + rate * payload_bytes, rate * payload_bytes, 1.0)
        up = (
            (self.workers - 1).bit_length() if meets == "merge" else 0
        )  # a tree: one message after another upwards, then a broadcast
        repeats = np.where(payload_bytes > 0, 1.0 + up, 0.0)
        return TransferTimes(repeats * once.alone_seconds, repeats * once.shared_seconds, once.pace)

    def _measured(self, operation: str, dtype: str) -> OperationTimes | None:
        links = self.network.measured
        return None if links is None else links.find(MEASURED_AS.get(operation, operation), dtype)

    def _fitted(self, operation: str) -> tuple[float, float]:
        """Return the start-up time, and the seconds for each byte of a worker's payload."""
        network, size = self.network, self.workers
        if operation == "all_to_all":
            return network.levels[-1].latency_seconds, _spread(network, size)
        ring_flows = {"all_reduce": flows.all_reduce, "all_gather": flows.all_gather}
        flow = ring_flows[operation](size, 1.0) if operation in ring_flows else flows.broadcast(size, 0, 1.0)
        links, load_bytes, latency = network.load(flow.sources, flow.destinations, flow.nbytes)
        rate = float((load_bytes / network.capacities[links]).max()) if len(links) else 0.0
        return network.rounds(operation, flow) * latency, rate


def _measured(times: OperationTimes, wire_bytes: Vector) -> TransferTimes:
    """Interpolate measured times: constant below the smallest size, at the fitted rate beyond the largest.

    The pace is the mean over messages, weighted by their times.
    """
    sizes = np.array([point.wire_bytes for point in times.points])
    more = np.maximum(wire_bytes - sizes[-1], 0.0) * times.seconds_per_byte
    alone, shared = (
        np.interp(wire_bytes, sizes, [getattr(point, name) for point in times.points]) + more
        for name in ("alone_seconds", "shared_seconds")
    )
    paces = np.interp(wire_bytes, sizes, [point.pace for point in times.points])
    weights = np.where(wire_bytes > 0, alone, 0.0)
    pace = float((paces * weights).sum() / weights.sum()) if weights.sum() else 1.0
    return TransferTimes(alone, np.minimum(shared, alone), pace)


def _spread(network: Network, size: int) -> float:
    """Return the seconds of an all-to-all with one byte at each worker: what leaves a unit shares the unit's link."""
    worst = 0.0
    for level in network.levels:
        inside = min(level.workers, size)
        rate = level.bits_per_second
        if level is network.levels[0]:
            rate = min([rate, *network.links.values()])
        worst = max(worst, inside * (size - inside) / size * 8 / rate)
    return worst

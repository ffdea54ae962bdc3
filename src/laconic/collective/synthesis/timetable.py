"""When messages start and end, where their routes, their order and which are sent together are given."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from laconic.collective.synthesis.routing import Routes
from laconic.collective.synthesis.wiring import Wiring

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Order:
    """In which order sends use each way, and each link that several ways share, by their numbers in the routes."""

    ways: dict[int, list[int]]
    shared: dict[int, list[int]]


@dataclass(frozen=True, eq=False)
class Timetable:
    """Messages of sends.

    - `message`: of each send the number of its message.
    - `start`, `end`: of each send the seconds at which its message starts, and has arrived.
    """

    message: Integers
    start: Numbers
    end: Numbers

    @property
    def seconds(self) -> float:
        """Until the last message has arrived."""
        return float(self.end.max(initial=0.0))


def timetable(
    wiring: Wiring, routes: Routes, order: Order, joined: NDArray[np.bool_], chunk_bytes: float
) -> Timetable | None:
    """Return the earliest times of all messages, or none where sends that are joined wait for each other.

    A message starts when all its chunks are there and the message before it on its way has arrived; its bytes go after
    its latency, one chunk after the other. Links that several ways share carry the bytes of one send at a time.

    - `joined`: which sends are of one message with the send before them on their way.
    """
    count = len(routes.sends)
    message = np.arange(count)
    begin, end = count, 2 * count  # the numbers of bytes that begin and of messages that end follow those that start
    later: list[tuple[int, int, float]] = []  # one moment, a later one, and the seconds between them at least
    for way, sends in order.ways.items():
        latency, takes = float(wiring.latency_seconds[way]), chunk_bytes / float(wiring.rates[way])
        for before, send in zip([-1, *sends], sends, strict=False):
            if joined[send]:
                message[send] = message[before]
            elif before >= 0:
                later.append((end + int(message[before]), send, 0.0))
            if before >= 0:
                later.append((begin + before, begin + send, takes))
            later.append((int(message[send]), begin + send, latency))
            later.append((begin + send, end + int(message[send]), takes))
    for send, parent in enumerate(routes.parent.tolist()):
        if parent >= 0:
            later.append((end + int(message[parent]), int(message[send]), 0.0))
    for limit, sends in order.shared.items():
        takes = chunk_bytes / wiring.limits[limit][1]
        later += [(begin + a, begin + b, takes) for a, b in pairwise(sends)]
    moment = _earliest(3 * count, later)
    return None if moment is None else Timetable(message, moment[message], moment[end + message])


def _earliest(count: int, later: list[tuple[int, int, float]]) -> Numbers | None:
    """Return the earliest moments, or none where they wait for each other in a circle."""
    moment = np.zeros(count)
    if not later:
        return moment
    first, second = (np.array([row[k] for row in later], dtype=np.int64) for k in (0, 1))
    gap = np.array([row[2] for row in later])
    for _ in range(count + 1):
        new = moment.copy()
        np.maximum.at(new, second, moment[first] + gap)
        if np.array_equal(new, moment):
            return moment
        moment = new
    return None

"""Packets through a store-and-forward port: one at a time, in queues of which the most urgent is served first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

PACKET_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Packet:
    """When its last bit is at a port, what it weighs, the queue it goes to, and whose it is."""

    seconds: float
    nbytes: float
    queue: int = 0
    owner: int = 0


def packets(nbytes: float, packet_bytes: float = PACKET_BYTES) -> list[float]:
    """The bytes of each packet: all full but the last."""
    full = int(nbytes // packet_bytes)
    rest = nbytes - full * packet_bytes
    return [packet_bytes] * full + ([rest] if rest > 0 else [])


def forward(arrivals: Sequence[Packet], seconds_per_byte: float) -> list[float]:
    """When each packet begins to leave. Queues are first in, first out, and served strictly: the smaller the sooner.

    A packet that has begun is not stopped. Of those that arrive at the same time, the first listed is first.
    """
    order = sorted(range(len(arrivals)), key=lambda number: arrivals[number].seconds)
    waiting: list[tuple[int, int]] = []
    begins = [0.0] * len(arrivals)
    now, place = 0.0, 0
    while place < len(order) or waiting:
        if not waiting:
            now = max(now, arrivals[order[place]].seconds)
        while place < len(order) and arrivals[order[place]].seconds <= now:
            heapq.heappush(waiting, (arrivals[order[place]].queue, place))
            place += 1
        number = order[heapq.heappop(waiting)[1]]
        begins[number] = now
        now += arrivals[number].nbytes * seconds_per_byte
    return begins


def through(arrivals: Sequence[Packet], seconds_per_byte: float, queues: int = 1) -> list[Packet]:
    """The same packets at the other end of the port's link, in the order in which they come there; with one queue
    priorities mean nothing."""
    queued = arrivals if queues > 1 else [Packet(p.seconds, p.nbytes, 0, p.owner) for p in arrivals]
    ends = [
        Packet(begin + packet.nbytes * seconds_per_byte, packet.nbytes, packet.queue, packet.owner)
        for begin, packet in zip(forward(queued, seconds_per_byte), arrivals, strict=True)
    ]
    return sorted(ends, key=lambda packet: packet.seconds)

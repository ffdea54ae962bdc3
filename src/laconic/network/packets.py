"""A packet model of a store-and-forward port: it sends one packet at a time, from the most urgent queue first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

PACKET_BYTES = 1500
"""The size of a full packet, as on Ethernet."""


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet at a port: when its last bit arrives, its bytes, the queue it belongs to, and its owner's number."""

    seconds: float
    nbytes: float
    queue: int = 0
    owner: int = 0


def packets(nbytes: float, packet_bytes: float = PACKET_BYTES) -> list[float]:
    """Return the bytes of each packet of a message: all are full but the last."""
    full = int(nbytes // packet_bytes)
    rest = nbytes - full * packet_bytes
    return [packet_bytes] * full + ([rest] if rest > 0 else [])


def forward(arrivals: Sequence[Packet], seconds_per_byte: float) -> list[float]:
    """Return when the port begins to send each packet.

    Queues are first in, first out, and served by strict priority: the smallest number first. A packet that has begun is
    not stopped. Of those that arrive at the same time, the first listed is first.
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
    """Return the same packets at the other end of the port's link, in the order of their arrival there.

    With one queue, priorities are ignored.
    """
    queued = arrivals if queues > 1 else [Packet(p.seconds, p.nbytes, 0, p.owner) for p in arrivals]
    ends = [
        Packet(begin + packet.nbytes * seconds_per_byte, packet.nbytes, packet.queue, packet.owner)
        for begin, packet in zip(forward(queued, seconds_per_byte), arrivals, strict=True)
    ]
    return sorted(ends, key=lambda packet: packet.seconds)

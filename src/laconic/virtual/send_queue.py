"""A virtual worker's queue of messages with priorities: the most urgent is sent first, within a credit of bytes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from laconic.virtual.clock import Clock, Operation
from laconic.worker import Priority

Send = Callable[[float], Operation]
"""A function that starts sending a message at the given time."""


class VirtualSendQueue:
    """The send queue of real workers (`real/send_queue.py`) with events in place of a thread.

    A worker that computes ahead of the network enqueues messages for times that the network has not reached yet.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Send, int, int, Operation]] = []
        self._serial = itertools.count()
        self._in_flight: dict[Operation, int] = {}

    def put(self, send: Send, priority: Priority, nbytes: int, seconds: float, what: str) -> Operation:
        """Enqueue a message at this time; the operation ends when the message's own does."""
        queued = Operation(what)
        entry = (priority.urgency, next(self._serial), send, nbytes, priority.credit_bytes, queued)

        def enqueue() -> None:
            heapq.heappush(self._waiting, entry)
            self._send_next(seconds)

        self._clock.at(seconds, enqueue)
        return queued

    def _send_next(self, now: float) -> None:
        while self._waiting:
            _, _, send, nbytes, credit, queued = self._waiting[0]
            if self._in_flight and sum(self._in_flight.values()) >= credit:
                return
            heapq.heappop(self._waiting)
            sent = send(now)
            self._in_flight[sent] = nbytes
            sent.on_end.append(lambda end, sent=sent, queued=queued: self._ended(sent, queued, end))  # type: ignore[misc]
            if sent.ended_seconds is not None:
                self._ended(sent, queued, now)

    def _ended(self, sent: Operation, queued: Operation, now: float) -> None:
        if self._in_flight.pop(sent, None) is not None:
            self._clock.end(queued, now, sent.error)
            self._send_next(now)

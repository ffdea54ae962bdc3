"""What a virtual worker has waiting for the network, most urgent first, as far as the credit goes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from laconic.virtual.clock import Clock, Operation
from laconic.worker import Priority

Say = Callable[[float], Operation]
"""Hands something over at a time."""


class VirtualSendQueue:
    """The same as on real workers (`real/send_queue.py`), by events in place of a thread: a worker that computes ahead
    of the network puts things here for times that are still to come."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, int, Say, int, int, Operation]] = []
        self._serial = itertools.count()
        self._under_way: dict[Operation, int] = {}

    def put(self, say: Say, priority: Priority, nbytes: int, seconds: float, what: str) -> Operation:
        queued = Operation(what)
        entry = (priority.urgency, next(self._serial), say, nbytes, priority.credit_bytes, queued)

        def come() -> None:
            heapq.heappush(self._waiting, entry)
            self._hand_over(seconds)

        self._clock.at(seconds, come)
        return queued

    def _hand_over(self, now: float) -> None:
        while self._waiting:
            _, _, say, nbytes, credit, queued = self._waiting[0]
            if self._under_way and sum(self._under_way.values()) >= credit:
                return
            heapq.heappop(self._waiting)
            said = say(now)
            self._under_way[said] = nbytes
            said.then.append(lambda then, said=said, queued=queued: self._ended(said, queued, then))  # type: ignore[misc]
            if said.ended_seconds is not None:
                self._ended(said, queued, now)

    def _ended(self, said: Operation, queued: Operation, now: float) -> None:
        if self._under_way.pop(said, None) is not None:
            self._clock.end(queued, now, said.error)
            self._hand_over(now)

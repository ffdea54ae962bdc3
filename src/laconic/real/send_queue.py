"""What waits to be handed to the network: a thread takes the most urgent first, as far as the credit goes."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from laconic.worker import Handle, Priority


class QueuedSend:
    """Something that waits for its turn, and then for its end."""

    def __init__(self, start: Callable[[], Handle], nbytes: int, credit_bytes: int) -> None:
        self.start, self.nbytes, self.credit_bytes = start, nbytes, credit_bytes
        self._started = threading.Event()
        self._handle: Handle | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        try:
            self._handle = self.start()
        except BaseException as error:  # for whoever waits
            self._error = error
        self._started.set()

    def done(self) -> bool:
        return self._started.is_set() and (self._handle is None or self._handle.done())

    def wait(self) -> Any:
        self._started.wait()
        if self._handle is None:
            assert self._error is not None
            raise self._error
        return self._handle.wait()


class SendQueue:
    """One worker's. So many bytes are under way at a time at most, beside the last that was handed over; what comes
    meanwhile and is more urgent goes before all that waits."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, QueuedSend]] = []
        self._serial = itertools.count()
        self._some = threading.Condition()
        threading.Thread(target=self._run, name="laconic-queue", daemon=True).start()

    def put(self, start: Callable[[], Handle], priority: Priority, nbytes: int) -> QueuedSend:
        """Never waits: this is called inside hooks."""
        queued = QueuedSend(start, nbytes, priority.credit_bytes)
        with self._some:
            heapq.heappush(self._waiting, (priority.urgency, next(self._serial), queued))
            self._some.notify()
        return queued

    def _run(self) -> None:
        in_flight: deque[QueuedSend] = deque()
        while True:
            with self._some:
                self._some.wait_for(lambda: self._waiting)
                credit = self._waiting[0][2].credit_bytes
            while in_flight and (in_flight[0].done() or sum(one.nbytes for one in in_flight) >= max(credit, 1)):
                _forget(in_flight.popleft())
            with self._some:  # what has come while the credit was spent may be more urgent
                queued = heapq.heappop(self._waiting)[2]
            queued.begin()
            in_flight.append(queued)


def _forget(queued: QueuedSend) -> None:
    """It is over, well or not: whoever asked for it will hear of an error."""
    try:
        queued.wait()
    except Exception:
        return

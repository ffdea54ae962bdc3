"""The priority queue of messages: a thread sends the most urgent first, as far as the credit allows."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from laconic.worker import Handle, Priority


class QueuedSend:
    """A handle of a queued message: it waits until the message is sent, and then until that has completed."""

    def __init__(self, start: Callable[[], Handle], nbytes: int, credit_bytes: int) -> None:
        self.start, self.nbytes, self.credit_bytes = start, nbytes, credit_bytes
        self._started = threading.Event()
        self._handle: Handle | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Send the message; an error is kept for `wait`."""
        try:
            self._handle = self.start()
        except BaseException as error:  # raised by `wait`
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
    """One worker's queue of messages with priorities.

    At most the credit's bytes are in flight at a time, beside the message sent last; a more urgent message that is
    queued meanwhile is sent before all that wait.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, QueuedSend]] = []
        self._serial = itertools.count()
        self._some = threading.Condition()
        threading.Thread(target=self._run, name="laconic-queue", daemon=True).start()

    def put(self, start: Callable[[], Handle], priority: Priority, nbytes: int) -> QueuedSend:
        """Queue a message without ever waiting, since this is called inside autograd hooks."""
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
            with self._some:  # a message queued while the credit was spent may be more urgent
                queued = heapq.heappop(self._waiting)[2]
            queued.begin()
            in_flight.append(queued)


def _forget(queued: QueuedSend) -> None:
    """Wait for a message to complete and ignore its error, which its own handle raises."""
    try:
        queued.wait()
    except Exception:
        return

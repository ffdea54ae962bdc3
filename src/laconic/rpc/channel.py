"""One letter under way, and the way to one machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from laconic.rpc.connection import Connection
from laconic.rpc.outbox import Outbox
from laconic.worker import ActorMessage

RETRY_SECONDS, _RETRY_MOST_SECONDS = 5.0, 60.0
_KEPT_BYTES, _KEPT_LETTERS = 256 << 20, 4  # what a worker keeps for a machine to be able to say it again


@dataclass(frozen=True)
class Patience:
    """How often to beat, and for how long to wait for a server that has answered, or that has not started yet."""

    interval_seconds: float
    unreachable_seconds: float
    start_seconds: float


class PendingCall:
    """A handle whose answer comes from the calling thread."""

    def __init__(self, kind: str, settle: Callable[[], None]) -> None:
        self.kind = kind
        self._settle = settle
        self._done = threading.Event()
        self._outcome: ActorMessage | Exception | None = None

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> ActorMessage:
        self._done.wait()
        self._settle()
        if isinstance(self._outcome, ActorMessage):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    def end(self, outcome: ActorMessage | Exception) -> None:
        self._outcome = outcome
        self._done.set()


@dataclass(eq=False)
class Channel:
    """What this worker says to one machine, and through which line."""

    address: str
    outbox: Outbox
    since_seconds: float  # when it was heard last, or looked for at first
    connection: Connection | None = None
    client_loop: dict[tuple[bool, int], PendingCall] = field(default_factory=dict)
    largest_bytes: int = 0
    asked: bool = False  # to be made durable, and nothing was heard since
    failed: Exception | None = None
    _retry_seconds: float = RETRY_SECONDS

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.address in self.connection.ready

    @property
    def limit_bytes(self) -> int:
        """How much may be kept here for the machine."""
        return max(_KEPT_BYTES, _KEPT_LETTERS * self.largest_bytes)

    def would_overflow(self, message: ActorMessage) -> bool:
        return self.failed is None and self.outbox.kept_bytes + message.nbytes > self.limit_bytes

    @property
    def is_heavy(self) -> bool:
        """Whether it is time to ask for a snapshot, before anybody has to wait for one."""
        return 4 * self.outbox.kept_bytes > 3 * self.limit_bytes

    def heard(self, now: float) -> None:
        self.since_seconds, self._retry_seconds = now, RETRY_SECONDS

    def is_overdue(self, now: float) -> bool:
        """Whether to say again what has no answer; each time less soon."""
        if not self.is_ready or not self.outbox.waiting:
            self.since_seconds = now
            return False
        assert self.connection is not None
        if self.connection.is_sending:
            self.since_seconds = now
        if now - self.since_seconds < self._retry_seconds:
            return False
        self.since_seconds, self._retry_seconds = now, min(2 * self._retry_seconds, _RETRY_MOST_SECONDS)
        return True

    def fail(self, error: Exception) -> None:
        self.failed = error
        for call in self.client_loop.values():
            call.end(error)
        self.client_loop.clear()

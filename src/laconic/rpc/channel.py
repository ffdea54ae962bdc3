"""A call that waits for its answer, and the channel from one worker to one actor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from laconic.rpc.connection import Connection
from laconic.rpc.outbox import Outbox
from laconic.worker import ActorMessage

RETRY_SECONDS, _RETRY_MOST_SECONDS = 5.0, 60.0
_KEPT_BYTES, _KEPT_MESSAGES = 256 << 20, 4  # what a worker keeps for an actor to be able to send it again


@dataclass(frozen=True)
class CallTimeouts:
    """The heartbeat interval, and how long to wait for a server that fell silent or that has not started yet."""

    interval_seconds: float
    unreachable_seconds: float
    start_seconds: float


class PendingCall:
    """A handle of one call, completed by the client loop's thread when the answer arrives or the call fails."""

    def __init__(self, kind: str, flush_ledger: Callable[[], None]) -> None:
        self.kind = kind
        self._flush_ledger = flush_ledger
        self._done = threading.Event()
        self._outcome: ActorMessage | Exception | None = None

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> ActorMessage:
        """Wait for the answer and return it, or raise the error with which the call failed."""
        self._done.wait()
        self._flush_ledger()
        if isinstance(self._outcome, ActorMessage):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome

    def end(self, outcome: ActorMessage | Exception) -> None:
        """Complete the call with its answer, or with the error that `wait` raises."""
        self._outcome = outcome
        self._done.set()


@dataclass(eq=False)
class Channel:
    """A worker's channel to one actor: its outbox, its pending calls and the connection that carries them."""

    address: str
    outbox: Outbox
    since_seconds: float  # when an answer arrived last, or when the server was first looked up
    connection: Connection | None = None
    calls: dict[tuple[bool, int], PendingCall] = field(default_factory=dict)
    largest_bytes: int = 0
    save_requested: bool = False  # a snapshot was asked for, and none was reported since
    failed: Exception | None = None
    _retry_seconds: float = RETRY_SECONDS

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.address in self.connection.ready

    @property
    def limit_bytes(self) -> int:
        """The bytes of writes that may be kept here until the actor holds them durably."""
        return max(_KEPT_BYTES, _KEPT_MESSAGES * self.largest_bytes)

    def would_overflow(self, message: ActorMessage) -> bool:
        """Tell whether keeping this write would exceed the limit."""
        return self.failed is None and self.outbox.kept_bytes + message.nbytes > self.limit_bytes

    @property
    def is_nearly_full(self) -> bool:
        """Whether it is time to ask for a snapshot, before a writer has to wait for one."""
        return 4 * self.outbox.kept_bytes > 3 * self.limit_bytes

    def note_answer(self, now: float) -> None:
        """Note that the actor answered: retries start again from the shortest delay."""
        self.since_seconds, self._retry_seconds = now, RETRY_SECONDS

    def is_overdue(self, now: float) -> bool:
        """Tell whether to send again what has no answer; each time the delay doubles."""
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
        """End all pending calls with this error; later calls raise it at once."""
        self.failed = error
        for call in self.calls.values():
            call.end(error)
        self.calls.clear()

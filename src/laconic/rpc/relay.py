"""Messages between actors: an actor sends as workers do, under a sender number of its own, and never waits."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from laconic.rpc.client_loop import ClientLoop
from laconic.worker import ActorMessage


def number_of(address: str) -> int:
    """Return an actor's number as a sender: negative, unlike a worker's rank, and the same after each restart."""
    return -1 - zlib.crc32(address.encode())


class Relay:
    """Sends one actor's messages to others. Unanswered ones are in no snapshot, so `is_idle` tells when there are
    none."""

    def __init__(self, make: Callable[[], ClientLoop]) -> None:
        self._make = make
        self._client_loop: ClientLoop | None = None

    def send(self, outgoing: Sequence[tuple[str, ActorMessage]]) -> None:
        """Send these messages, each to its address; the client loop is started by the first."""
        if self._client_loop is None:
            self._client_loop = self._make()
        for address, message in outgoing:
            self._client_loop.call(address, message, writes=True, waits=False)

    @property
    def is_idle(self) -> bool:
        return self._client_loop is None or self._client_loop.is_idle

    def close(self) -> None:
        if self._client_loop is not None:
            self._client_loop.close()

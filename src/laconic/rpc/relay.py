"""Machines that speak to machines: as workers do, under a number of their own, and without ever waiting."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from laconic.rpc.client_loop import ClientLoop
from laconic.worker import ActorMessage


def number_of(address: str) -> int:
    """What a machine is called as a sender: below all workers, the same in each of its lives."""
    return -1 - zlib.crc32(address.encode())


class Relay:
    """One machine's letters to others. Those without an answer are in no snapshot, so it says when there are none."""

    def __init__(self, make: Callable[[], ClientLoop]) -> None:
        self._make = make
        self._client_loop: ClientLoop | None = None

    def send(self, outgoing: Sequence[tuple[str, ActorMessage]]) -> None:
        if self._client_loop is None:
            self._client_loop = self._make()
        for address, message in outgoing:
            self._client_loop.call(address, message, writes=True, waits=False)

    @property
    def is_quiet(self) -> bool:
        return self._client_loop is None or self._client_loop.is_quiet

    def close(self) -> None:
        if self._client_loop is not None:
            self._client_loop.close()

"""Machines that speak to machines: as workers do, under a number of their own, and without ever waiting."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from laconic.rpc.client_loop import Calls
from laconic.worker import Letter


def number_of(address: str) -> int:
    """What a machine is called as a sender: below all workers, the same in each of its lives."""
    return -1 - zlib.crc32(address.encode())


class Relay:
    """One machine's letters to others. Those without an answer are in no snapshot, so it says when there are none."""

    def __init__(self, make: Callable[[], Calls]) -> None:
        self._make = make
        self._calls: Calls | None = None

    def send(self, outgoing: Sequence[tuple[str, Letter]]) -> None:
        if self._calls is None:
            self._calls = self._make()
        for address, letter in outgoing:
            self._calls.call(address, letter, writes=True, waits=False)

    @property
    def is_quiet(self) -> bool:
        return self._calls is None or self._calls.is_quiet

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close()

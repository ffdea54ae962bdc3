"""A communication for which several others wait: whichever of them is resumed first drives it on."""

from __future__ import annotations

from typing import Any

from laconic.worker import Awaited, Communication, Handle


class _Kept:
    """A handle whose result is read once and kept, since several wait for it; the host waits, not a stream."""

    stream_ordered = False

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._results: list[Any] = []

    def done(self) -> bool:
        return bool(self._results) or self._handle.done()

    def wait(self) -> Any:
        if not self._results:
            self._results.append(self._handle.wait())
        return self._results[0]


class SharedWait:
    """A communication whose first messages are sent; `finish` waits for its end, and any number may."""

    def __init__(self, communication: Communication[Any]) -> None:
        self._communication, self._stage = communication, 0
        self._awaited: Awaited | None = None
        self._resume(None)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._awaited is None

    def finish(self) -> Communication[None]:
        """Wait until it has ended."""
        while self._awaited is not None:
            stage = self._stage
            answer = yield self._awaited
            if stage == self._stage:  # nobody else has driven it on meanwhile
                self._resume(answer)

    def _resume(self, answer: Any) -> None:
        self._stage += 1
        try:
            awaited = self._communication.send(answer)
            self._awaited = [_Kept(one) for one in awaited] if isinstance(awaited, list) else _Kept(awaited)
        except StopIteration:
            self._awaited = None

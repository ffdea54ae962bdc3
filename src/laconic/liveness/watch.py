"""One thread that talks to the board, so that nobody else ever waits for a store that has frozen or vanished."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.liveness.beats import UNKNOWN, Beat, Lost
from laconic.liveness.board import Board

_HURRY_SECONDS = 0.1


@dataclass(frozen=True)
class StoreAddress:
    """Where a board is: the store's address, and the corner of it."""

    host: str
    port: int
    prefix: str
    size: int


class Watch(threading.Thread):
    """Writes one slot of the board (or none) and reads all, every interval, until stopped.

    Others read `lost`, `beats`, `answered` (monotonic time of the store's last answer), `connected` (it has answered at
    all) and `gone` (the store's process has ended: its port refuses). `judge` is asked after every reading and may find
    a loss, which is announced; `on_news` is called when there is something new to know.
    """

    def __init__(
        self,
        place: StoreAddress,
        interval_seconds: float,
        rank: int | None = None,
        machine: str = UNKNOWN,
        judge: Callable[[Sequence[Beat], float], Lost | None] = lambda beats, now: None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=f"laconic-watch-{place.prefix}", daemon=True)
        self.lost: Lost | None = None
        self.gone = False
        self.answered = time.monotonic()
        self.connected = False  # connecting may take long where names are looked up in vain: torch does so
        self.beats: list[Beat] = [Beat(0, UNKNOWN)] * place.size
        self._place, self._interval_seconds, self._rank = place, interval_seconds, rank
        self._count, self._machine, self._done = 0, machine, False
        self._judge, self._on_news = judge, on_news
        self._outbox: Lost | None = None
        self._wake = threading.Event()
        self._read = threading.Condition()
        self._begun = self._finished = 0  # readings
        self._hurry_until = 0.0
        self._stopped = False

    def announce(self, lost: Lost, wait_seconds: float) -> Lost:
        """Tell everybody, and return what everybody was told: somebody else may have been first."""
        with self._read:
            self._outbox = lost
        self._next_reading(wait_seconds)
        return self.lost or lost

    def done(self, wait_seconds: float) -> None:
        """Mark this slot as finished: from now on its silence means nothing."""
        self._done = True
        self._next_reading(wait_seconds)

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def poke(self, seconds: float) -> None:
        """Read at once, and often for this long: somebody is waiting for the answer."""
        self._hurry_until = time.monotonic() + seconds
        self._wake.set()

    def all_done(self) -> bool:
        return all(beat.done for beat in self.beats)

    def run(self) -> None:
        board: Board | None = None
        while not self._stopped and not self.gone:
            try:
                board = board or Board(self._place.host, self._place.port, self._place.prefix, self._place.size)
                self._exchange(board)
            except RuntimeError:  # torch's DistError: the connection broke
                board = None
                self.gone = _refuses(self._place.host, self._place.port)
            if self.gone or self.lost is not None:
                self._on_news()
            hurry = time.monotonic() < self._hurry_until
            self._wake.wait(min(_HURRY_SECONDS, self._interval_seconds) if hurry else self._interval_seconds)
            self._wake.clear()

    def _exchange(self, board: Board) -> None:
        with self._read:
            self._begun += 1
            found, done = self._outbox, self._done
        if self._rank is not None:
            self._count += 1
            board.write(self._rank, Beat(self._count, self._machine, done))
        beats, lost = board.read()
        self.answered, self.connected = time.monotonic(), True
        found = found or self._judge(beats, self.answered)
        if lost is None and found is not None:
            lost = board.announce(found)
        with self._read:
            self.beats, self.lost = beats, lost
            self._finished = self._begun
            self._read.notify_all()

    def _next_reading(self, wait_seconds: float) -> None:
        """Wait for a reading that began after this call, as long as the store answers."""
        with self._read:
            wanted = self._begun + 1
            self.poke(wait_seconds)
            self._read.wait_for(lambda: self._finished >= wanted or not self.is_alive(), wait_seconds)


def _refuses(host: str, port: int) -> bool:
    """Whether nobody listens there any more (as opposed to: no answer)."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionError:
        return True
    except OSError:
        return False
    return False

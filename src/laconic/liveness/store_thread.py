"""The thread that uses the board, so that no other thread ever waits for a store that is frozen or gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.liveness.detection import UNKNOWN, Beat, Lost
from laconic.liveness.heartbeat_store import Board

_OFTEN_SECONDS = 0.1
_LAST_READING_SECONDS = 2.0


@dataclass(frozen=True)
class StoreAddress:
    """Where a board is: the store's address, the prefix of the board's keys and the number of ranks."""

    host: str
    port: int
    prefix: str
    size: int


class Watch(threading.Thread):
    """Writes one slot of the board (or none) and reads all, every interval, until stopped.

    Other threads read `lost`, `beats`, `answered` (monotonic time of the store's last answer), `connected` (it has
    answered at all) and `gone` (the store's process has ended: its port refuses). `judge` is called after every reading
    and may find a loss, which is announced; `on_news` is called when a loss is known or the store is gone.
    """

    def __init__(
        self,
        store: StoreAddress,
        interval_seconds: float,
        rank: int | None = None,
        machine: str = UNKNOWN,
        judge: Callable[[Sequence[Beat], float], Lost | None] = lambda beats, now: None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name=f"laconic-watch-{store.prefix}", daemon=True)
        self.lost: Lost | None = None
        self.gone = False
        self.answered = time.monotonic()
        self.connected = False  # connecting may take long where torch looks up names that do not resolve
        self.beats: list[Beat] = [Beat(0, UNKNOWN)] * store.size
        self._store, self._interval_seconds, self._rank = store, interval_seconds, rank
        self._count, self._host, self._done = 0, machine, False
        self._judge, self._on_news = judge, on_news
        self._to_announce: Lost | None = None
        self._wake = threading.Event()
        self._read = threading.Condition()
        self._begun = self._finished = 0  # readings
        self._read_often_until = 0.0
        self._stopped = False

    def announce(self, lost: Lost, wait_seconds: float) -> Lost:
        """Announce a loss to all ranks, and return the loss that holds: another rank's may have been first."""
        with self._read:
            self._to_announce = lost
        self._next_reading(wait_seconds)
        return self.lost or lost

    def done(self, wait_seconds: float) -> None:
        """Mark this rank as finished: from now on its silence is no loss."""
        self._done = True
        self._next_reading(wait_seconds)

    def stop(self) -> None:
        """End the readings, and wait for the last one, unless the store no longer answers: a thread that Python finds
        in native code when it ends may abort the whole process (`terminate called`)."""
        self._stopped = True
        self._wake.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(_LAST_READING_SECONDS)

    def read_often(self, seconds: float) -> None:
        """Read at once, and often for this long, because the caller waits for news."""
        self._read_often_until = time.monotonic() + seconds
        self._wake.set()

    def all_done(self) -> bool:
        """Tell whether all ranks have finished."""
        return all(beat.done for beat in self.beats)

    def run(self) -> None:
        board: Board | None = None
        while not self._stopped and not self.gone:
            try:
                board = board or Board(self._store.host, self._store.port, self._store.prefix, self._store.size)
                self._exchange(board)
            except RuntimeError:  # torch's DistError: the connection broke
                board = None
                self.gone = _refuses(self._store.host, self._store.port)
            if self.gone or self.lost is not None:
                self._on_news()
            read_soon = time.monotonic() < self._read_often_until
            self._wake.wait(min(_OFTEN_SECONDS, self._interval_seconds) if read_soon else self._interval_seconds)
            self._wake.clear()

    def _exchange(self, board: Board) -> None:
        with self._read:
            self._begun += 1
            found, done = self._to_announce, self._done
        if self._rank is not None:
            self._count += 1
            board.write(self._rank, Beat(self._count, self._host, done))
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
            self.read_often(wait_seconds)
            self._read.wait_for(lambda: self._finished >= wanted or not self.is_alive(), wait_seconds)


def _refuses(host: str, port: int) -> bool:
    """Tell whether connections to this port are refused, as opposed to unanswered."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except ConnectionError:
        return True
    except OSError:
        return False
    return False

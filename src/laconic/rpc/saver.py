"""The thread that writes an actor's snapshots, and the rule by which they are due."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from laconic.rpc.snapshots import Snapshots


class Saver:
    """Writes one actor's snapshots in a thread of its own, so that messages are answered meanwhile.

    Snapshots are written one at a time: while one is being written, `busy`, no other is begun.
    """

    def __init__(self, snapshots: Snapshots, every_bytes: int, on_done: Callable[[], None]) -> None:
        self.every_bytes = every_bytes
        self._snapshots, self._on_done = snapshots, on_done
        self._written_bytes = 0
        self._wanted = self.busy = False
        self._todo: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._saved: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="laconic-snapshots", daemon=True)
        self._thread.start()

    def wrote(self, nbytes: int) -> None:
        """Count the bytes of a write to the actor."""
        self._written_bytes += nbytes

    def ask(self) -> None:
        """Request a snapshot as soon as possible, however little was written."""
        self._wanted = True

    @property
    def due(self) -> bool:
        return not self.busy and (self._wanted or self._written_bytes >= self.every_bytes)

    def begin(self, state: dict[str, Any]) -> None:
        """Start to write this state; it must not change meanwhile."""
        self._wanted, self.busy, self._written_bytes = False, True, 0
        self._todo.put(state)

    def finished(self) -> dict[str, Any] | None:
        """Return a state that has reached the disk since the last call, if any; an error of the writing is raised
        here."""
        try:
            done = self._saved.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        if isinstance(done, Exception):
            raise done
        return done

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (state := self._todo.get()) is not None:
            try:
                self._snapshots.save(state)
                self._saved.put(state)
            except Exception as error:
                self._saved.put(error)
            del state
            self._on_done()

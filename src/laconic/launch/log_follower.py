"""Show a log file on the console, byte for byte, while it grows.

torch's own tailer reads text, which turns the carriage returns of progress bars into new lines, and prefixes each line.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

_POLL_SECONDS = 0.05
_CHUNK_BYTES = 1 << 16


class LogFollower(threading.Thread):
    """Copies what is appended to `path` from now on to standard output, until stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(name=f"laconic-follow-{path.name}", daemon=True)
        path.touch()
        self._path, self._offset = path, path.stat().st_size
        self._finished = threading.Event()

    def stop(self) -> None:
        """Show what is left, then end."""
        self._finished.set()
        if self.is_alive():
            self.join(timeout=5)

    def run(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while True:
                last = self._finished.is_set()  # asked before reading: what was written until then is still shown
                while data := file.read(_CHUNK_BYTES):
                    self._show(data)
                if last:
                    return
                self._finished.wait(_POLL_SECONDS)

    def _show(self, data: bytes) -> None:
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except (BrokenPipeError, ValueError):  # nobody reads our output any more; the log file has it all
            self._finished.set()

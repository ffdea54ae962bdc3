"""The comparison's side of a gate: one row's workers come, report and wait until they are let on.

A Unix socket, because it works across network namespaces and never touches the network that is measured.
"""

from __future__ import annotations

import json
import selectors
import socket
from pathlib import Path

from laconic.experiments.outcome import Material
from laconic.experiments.row import RowProcess

_LOOK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 16


class _Visitor:
    """One worker's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.waits = self.gone = False
        self._unread = b""

    def read(self) -> list[dict[str, object]]:
        """Whole messages that have come; notices when there will be none any more."""
        try:
            data = self.connection.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.gone, self.waits = True, False
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


class GatedRow:
    """A row whose workers stop at the gate; between openings, none of them moves."""

    def __init__(self, socket_path: Path, workers: int) -> None:
        self._workers = workers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(socket_path))
        self._listener.listen(workers)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._visitors: list[_Visitor] = []
        self.material = Material()
        self.steps = 0

    def open(self, steps: int) -> None:
        """Let everybody do so many steps; 0: end the script before its next one."""
        self.steps += steps
        for visitor in self._visitors:
            if visitor.waits:
                visitor.waits = False
                try:
                    visitor.connection.sendall(b"%d\n" % steps)
                except OSError:
                    visitor.gone = True

    def await_quiet(self, run: RowProcess) -> bool:
        """Until all workers wait at the gate (then True) or the run has ended."""
        while True:
            if len(self._visitors) == self._workers and all(v.waits or v.gone for v in self._visitors):
                if any(v.waits for v in self._visitors):
                    return True
                run.process.wait()
                return False
            for key, _ in self._selector.select(_LOOK_SECONDS):
                self._attend(key)
            if run.process.poll() is not None and not self._selector.select(0):
                return False

    def close(self) -> None:
        for visitor in self._visitors:
            visitor.connection.close()
        self._selector.close()
        self._listener.close()

    def _attend(self, key: selectors.SelectorKey) -> None:
        visitor: _Visitor | None = key.data
        if visitor is None:
            connection, _ = self._listener.accept()
            visitor = _Visitor(connection)
            self._visitors.append(visitor)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
            return
        for message in visitor.read():
            if visitor.rank is None:
                visitor.rank = int(str(message["rank"]))
                self.material.records[visitor.rank] = []
            else:
                records = message["records"]
                assert isinstance(records, list)
                self.material.records[visitor.rank].extend(records)
                visitor.waits = not message["ended"]
        if visitor.gone:
            self._selector.unregister(visitor.connection)

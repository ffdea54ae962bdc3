"""The comparison's side of a gate, at which the workers of a row report their records and wait for permission to step.

The gate is a Unix socket, because that works across network namespaces and never uses the network that is measured.
"""

from __future__ import annotations

import json
import selectors
import socket
from pathlib import Path

from laconic.experiments.outcome import RunRecords
from laconic.experiments.row import RowProcess

_POLL_SECONDS = 0.5
_CHUNK_BYTES = 1 << 16


class _WorkerConnection:
    """The connection of one worker to the gate."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.rank: int | None = None
        self.waiting = self.closed = False
        self._unread = b""

    def read(self) -> list[dict[str, object]]:
        """Return the complete messages that have arrived, and mark the connection as closed at its end."""
        try:
            data = self.socket.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            self.closed, self.waiting = True, False
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]


class GatedRow:
    """A row whose workers stop at the gate: none of them takes a step unless the gate grants it."""

    def __init__(self, socket_path: Path, workers: int) -> None:
        self._workers = workers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(socket_path))
        self._listener.listen(workers)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: list[_WorkerConnection] = []
        self.run_records = RunRecords()
        self.steps = 0

    def open(self, steps: int) -> None:
        """Grant all waiting workers so many steps; 0 ends the script before its next step."""
        self.steps += steps
        for connection in self._connections:
            if connection.waiting:
                connection.waiting = False
                try:
                    connection.socket.sendall(b"%d\n" % steps)
                except OSError:
                    connection.closed = True

    def wait_until_stopped(self, run: RowProcess) -> bool:
        """Wait until all workers wait at the gate (return True) or the run has ended (return False)."""
        while True:
            if len(self._connections) == self._workers and all(c.waiting or c.closed for c in self._connections):
                if any(c.waiting for c in self._connections):
                    return True
                run.process.wait()
                return False
            for key, _ in self._selector.select(_POLL_SECONDS):
                self._handle(key)
            if run.process.poll() is not None and not self._selector.select(0):
                return False

    def close(self) -> None:
        """Close all sockets of the gate."""
        for connection in self._connections:
            connection.socket.close()
        self._selector.close()
        self._listener.close()

    def _handle(self, key: selectors.SelectorKey) -> None:
        connection: _WorkerConnection | None = key.data
        if connection is None:
            accepted, _ = self._listener.accept()
            connection = _WorkerConnection(accepted)
            self._connections.append(connection)
            self._selector.register(accepted, selectors.EVENT_READ, connection)
            return
        for message in connection.read():
            if connection.rank is None:
                connection.rank = int(str(message["rank"]))
                self.run_records.records[connection.rank] = []
            else:
                records = message["records"]
                assert isinstance(records, list)
                self.run_records.records[connection.rank].extend(records)
                connection.waiting = not message["ended"]
        if connection.closed:
            self._selector.unregister(connection.socket)

"""A stepped run: a script on virtual workers in its own process, which advances by as many steps as it is granted.

It stops at a comparison's gate (`runtime/step_recorder.py`) on rank 0 alone: while one virtual worker waits there, none
of the others advances, so they need no gate of their own. Rank 0's metrics arrive through the same socket.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laconic.experiments.row import Row
from laconic.launch.request import Request
from laconic.planner.forkserver import ForkedRow
from laconic.planner.verify_results import Logged

_UNBOUNDED = 2**62
_CHUNK_BYTES = 1 << 16


@dataclass(eq=False)
class _WorkerConnection:
    """The connection of one worker to the gate."""

    connection: socket.socket
    rank: int | None = None
    unread: bytes = b""


@dataclass(eq=False)
class SteppedRun:
    """The run of one strategy with one seed; `waiting` means that it has taken all granted steps and stands still."""

    strategy: str
    request: Request
    folder: Path
    metric: str
    waiting: bool = False
    over: bool = False
    closed: bool = False
    steps: int = 0  # of rank 0
    error: str | None = None
    logged: list[Logged] = field(default_factory=list)
    other_metrics: set[str] = field(default_factory=set)
    _connections: list[_WorkerConnection] = field(default_factory=list)
    _granted: int = 0

    def __post_init__(self) -> None:
        assert self.request.gate is not None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.request.gate)
        self.listener.listen(self.request.workers)
        self._process = ForkedRow(Row(self.strategy, self.strategy), self.request, self.folder)

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets on which the run sends its records."""
        return [self.listener, *(worker.connection for worker in self._connections)]

    def grant(self, goal: int) -> None:
        """Let the run continue until rank 0 has taken `goal` steps in all."""
        self.waiting = False
        for worker in self._connections:
            if worker.rank == 0:
                self._answer(worker, goal - self._granted)
        self._granted = goal

    def receive(self, ready: Sequence[object]) -> None:
        """Read what has arrived on those of its sockets that are ready."""
        for worker in [worker for worker in self._connections if worker.connection in ready]:
            self._read(worker)
        if self.listener in ready:
            self._connections.append(_WorkerConnection(self.listener.accept()[0]))

    def check_exit(self) -> None:
        """Mark the run as over if its process has ended and all its records have been read."""
        if not self.over and not self._connections and self._process.process.poll() is not None:
            failure = self._process.failure()
            self.over, self.waiting = True, False
            self.error = (
                None if failure is None else failure.rpartition(" (see ")[0]
            )  # the folder is deleted after the verification

    def close(self) -> None:
        """End the process and close all sockets."""
        if not self.closed:
            self.closed = True
            self._process.end()
            for one in self.sockets:
                one.close()

    def _read(self, worker: _WorkerConnection) -> None:
        try:
            data = worker.connection.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            worker.connection.close()
            self._connections.remove(worker)
            return
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if worker.rank is None:
                worker.rank = int(message["rank"])
            elif worker.rank == 0:
                self._store(message["records"])
                self.waiting = not message["ended"]
            elif not message["ended"]:
                self._answer(worker, _UNBOUNDED)

    def _store(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            if "values" not in record:
                self.steps = record["step"]
                continue
            value = record["values"].get(self.metric)
            if value is None:
                self.other_metrics.update(record["values"])
                continue
            self.logged.append(Logged(record["step"], record["seconds"], record["sent_bytes"], float(value)))

    def _answer(self, worker: _WorkerConnection, steps: int) -> None:
        with suppress(OSError):
            worker.connection.sendall(b"%d\n" % steps)

    @property
    def diverged(self) -> str | None:
        """A sentence if the metric is not finite from some step on, else None."""
        wrong = next((at for at in self.logged if not math.isfinite(at.value)), None)
        return None if wrong is None else f"its {self.metric} is not finite from step {wrong.step} on"

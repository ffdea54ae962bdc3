"""A script on virtual workers in a process of its own, which goes on by as many steps as it is granted.

It stops at a comparison's gate (`runtime/step_recorder.py`) on rank 0 alone: while one virtual worker waits there, none
of the others moves, so they need no gate of their own. What rank 0 logged comes through the same socket.
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
from laconic.planner.verified import Logged

_UNBOUNDED = 2**62
_CHUNK_BYTES = 1 << 16


@dataclass(eq=False)
class _Door:
    """One worker's connection."""

    connection: socket.socket
    rank: int | None = None
    unread: bytes = b""


@dataclass(eq=False)
class SteppedRun:
    """One strategy, one seed. `waits`: it has made its steps and stands still."""

    strategy: str
    request: Request
    folder: Path
    metric: str
    waits: bool = False
    over: bool = False
    closed: bool = False
    steps: int = 0  # of rank 0
    error: str | None = None
    logged: list[Logged] = field(default_factory=list)
    other_metrics: set[str] = field(default_factory=set)
    _doors: list[_Door] = field(default_factory=list)
    _granted: int = 0

    def __post_init__(self) -> None:
        assert self.request.gate is not None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.request.gate)
        self.listener.listen(self.request.workers)
        self._process = ForkedRow(Row(self.strategy, self.strategy), self.request, self.folder)

    @property
    def sockets(self) -> list[socket.socket]:
        """What to listen to for news of it."""
        return [self.listener, *(door.connection for door in self._doors)]

    def grant(self, goal: int) -> None:
        """Go on until rank 0 has made so many steps."""
        self.waits = False
        for door in self._doors:
            if door.rank == 0:
                self._answer(door, goal - self._granted)
        self._granted = goal

    def hear(self, ready: Sequence[object]) -> None:
        """Take what has come through these sockets."""
        for door in [door for door in self._doors if door.connection in ready]:
            self._read(door)
        if self.listener in ready:
            self._doors.append(_Door(self.listener.accept()[0]))

    def look(self) -> None:
        """Notice that the process has ended, once nothing of what it said is unread."""
        if not self.over and not self._doors and self._process.process.poll() is not None:
            said = self._process.failure()
            self.over, self.waits = True, False
            self.error = None if said is None else said.rpartition(" (see ")[0]  # the folder will be gone

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._process.end()
            for one in self.sockets:
                one.close()

    def _read(self, door: _Door) -> None:
        try:
            data = door.connection.recv(_CHUNK_BYTES)
        except OSError:
            data = b""
        if not data:
            door.connection.close()
            self._doors.remove(door)
            return
        *lines, door.unread = (door.unread + data).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if door.rank is None:
                door.rank = int(message["rank"])
            elif door.rank == 0:
                self._take(message["records"])
                self.waits = not message["ended"]
            elif not message["ended"]:
                self._answer(door, _UNBOUNDED)

    def _take(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            if "values" not in record:
                self.steps = record["step"]
                continue
            value = record["values"].get(self.metric)
            if value is None:
                self.other_metrics.update(record["values"])
                continue
            self.logged.append(Logged(record["step"], record["seconds"], record["sent_bytes"], float(value)))

    def _answer(self, door: _Door, steps: int) -> None:
        with suppress(OSError):
            door.connection.sendall(b"%d\n" % steps)

    @property
    def diverged(self) -> str | None:
        wrong = next((at for at in self.logged if not math.isfinite(at.value)), None)
        return None if wrong is None else f"its {self.metric} is not finite from step {wrong.step} on"

"""Heartbeats through a pipe, from a process to the launcher that started it on the same host.

A run with servers has no store in which its processes watch each other: the launcher, which may restart each by itself,
watches them. Each life of a process has a pipe of its own, so that no beat of a former life is taken for a new one.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress

from laconic.liveness.detection import Beat, Judge, Lost, interval

_CHUNK_BYTES = 1 << 16


_BEAT, _LAST = b".", b"!"


class HeartbeatPipe:
    """The launcher's end of the pipe of one life; `writer` is the descriptor that the process inherits."""

    def __init__(self, machine: str, limit_seconds: float) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)  # a launcher that does not read must not stop anybody
        self._machine, self._count, self._is_ending = machine, 0, False
        self._judge = Judge(1, None, limit_seconds, interval(limit_seconds), time.monotonic())

    def close_writer(self) -> None:
        """Give up the process's end, once the process has inherited it."""
        os.close(self.writer)

    def look(self) -> Lost | None:
        """Take in the beats that have arrived, and return a loss if the process has been silent for too long."""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, _CHUNK_BYTES):
                self._count += len(data)
                self._is_ending = self._is_ending or _LAST in data
        beat = Beat(0 if self._is_ending else self._count, self._machine)  # it may take as long to end as to start
        return self._judge.look([beat], time.monotonic())

    def close(self) -> None:
        os.close(self._reader)


def start(descriptor: int, limit_seconds: float) -> None:
    """Send a heartbeat now, and more from a thread of this process until it ends or is frozen.

    The last one is sent when the interpreter ends, which stops threads, and takes a while itself.
    """
    os.set_inheritable(descriptor, False)
    os.write(descriptor, _BEAT)
    atexit.register(_send, descriptor, _LAST)  # what is registered later runs before it, and is still watched
    step = interval(limit_seconds)
    threading.Thread(target=_beat, args=(descriptor, step), name="laconic-heartbeat", daemon=True).start()


def _beat(descriptor: int, interval_seconds: float) -> None:
    pause = threading.Event()
    while True:
        pause.wait(interval_seconds)
        _send(descriptor, _BEAT)


def _send(descriptor: int, beat: bytes) -> None:
    with suppress(BrokenPipeError, BlockingIOError):  # the launcher is gone, or has not read for long
        os.write(descriptor, beat)

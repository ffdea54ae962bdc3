"""What both ends do with their sockets."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import zmq
import zmq.utils.garbage  # now, so that at exit it ends after whatever is registered from here on

from laconic.rpc.frames import Buffer

_COPIED_BYTES = 1 << 14  # shorter frames are cheaper to copy than to share


class Wake:
    """How one thread rouses another: who polls `fileno` is roused by `ring`."""

    def __init__(self) -> None:
        self._ear, self._bell = socket.socketpair()
        for end in (self._ear, self._bell):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._ear.fileno()

    def ring(self) -> None:
        with suppress(OSError):  # full: it rings already; closed: nobody waits any more
            self._bell.send(b"!")

    def hear(self) -> None:
        with suppress(BlockingIOError):
            while self._ear.recv(4096):
                pass

    def close(self) -> None:
        self._ear.close()
        self._bell.close()


def receive(source: zmq.Socket[Any]) -> list[bytes] | None:
    """A message of short frames, if there is one."""
    try:
        return source.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def hand_over(to: zmq.Socket[Any], frames: Sequence[Buffer]) -> zmq.MessageTracker | None:
    """Send long frames from where they lie; the tracker tells when all have left.

    To a peer that is gone, or whose queue is full, nothing is said: it asks again.
    """
    sent = [zmq.Frame(frame, track=True, copy=len(frame) <= _COPIED_BYTES) for frame in frames]
    try:
        for frame in sent[:-1]:
            to.send(frame, zmq.NOBLOCK | zmq.SNDMORE, copy=False)
        to.send(sent[-1], zmq.NOBLOCK, copy=False)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            raise
        return None
    return zmq.MessageTracker(*sent)

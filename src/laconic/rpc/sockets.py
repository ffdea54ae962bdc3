"""Socket helpers of both ends: waking a polling thread, receiving, and sending without copies."""

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
    """Wakes a thread that polls: `notify` makes `fileno` readable, `drain` clears it."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def notify(self) -> None:
        with suppress(OSError):  # full: a wake-up is pending already; closed: nobody polls any more
            self._writer.send(b"!")

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def receive(source: zmq.Socket[Any]) -> list[bytes] | None:
    """Return a message of short frames if one has arrived, without waiting."""
    try:
        return source.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None


def send(to: zmq.Socket[Any], frames: Sequence[Buffer]) -> zmq.MessageTracker | None:
    """Send long frames without copying them; the tracker tells when ZeroMQ no longer needs their memory.

    A message to a peer that is gone, or whose queue is full, is dropped: the peer asks again.
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

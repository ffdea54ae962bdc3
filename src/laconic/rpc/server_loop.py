"""The server side of a process: one thread and two sockets for all its actors.

The encrypted socket (CURVE) admits whoever holds the run's worker key, and gives out a key for the session. The other
carries tensors unencrypted, because encrypting them costs several times as much as sending them; it admits connections
that know the session's password, and accepts messages that the session's key authenticates.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils import z85

from laconic.errors import LaconicError
from laconic.liveness.detection import EXIT_REFUSED
from laconic.rpc import control
from laconic.rpc.control import Control
from laconic.rpc.frames import Limits, encode
from laconic.rpc.keys import Keys
from laconic.rpc.service import Mailbox, Outgoing, PeerSession, Service
from laconic.rpc.sockets import Wake, receive, send

_ZAP = "inproc://zeromq.zap.01"
_CONTROL, _TENSORS = b"control", b"tensors"
_LINGER_MS = 500
_QUEUED = 4  # messages of one worker that may wait in memory here; more of them wait at the worker
_AT_ONCE = 8  # tensor messages handled before control messages are looked at again


class ServerLoop:
    """Serves all actors of one process; it accepts connections from the moment it is made, and `admit` adds an
    actor."""

    def __init__(
        self, context: zmq.Context[Any], keys: Keys, host: str, heartbeat_seconds: float, interval_seconds: float
    ) -> None:
        self._limits = Limits()
        self.service = Service(heartbeat_seconds, interval_seconds, self._limits)
        self._interval_seconds = interval_seconds
        self._keys = keys
        self._wake = Wake()
        self._is_closing = False
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        self._control = _router(context, _CONTROL)
        self._control.curve_server = 1
        self._control.curve_publickey, self._control.curve_secretkey = (
            keys.servers.public.encode(),
            keys.servers.secret.encode(),
        )
        self._tensors = _router(context, _TENSORS)
        self._tensors.plain_server = 1
        self._tensors.rcvhwm = _QUEUED
        self._tensors.maxmsgsize = self._limits.nbytes
        shown = f"[{host}]" if ":" in host else host
        for socket in (self._control, self._tensors):
            socket.ipv6 = ":" in host
        self.endpoint = f"tcp://{shown}:{self._control.bind_to_random_port(f'tcp://{shown}')}"
        self.service.port = self._tensors.bind_to_random_port(f"tcp://{shown}")
        self._thread = threading.Thread(target=self._run, name="laconic-rpc-server", daemon=True)
        self._thread.start()

    def admit(self, address: str, mailbox: Mailbox) -> None:
        """Serve an actor under this address."""
        self.service.expect(mailbox.inbox.senders)
        self.service.mailboxes[address] = mailbox

    def wake(self) -> None:
        """Wake the thread: there may be something to do other than a message."""
        self._wake.notify()

    def close(self) -> None:
        """Stop the thread, the actors' savers and relays, and close the sockets."""
        self._is_closing = True
        self._wake.notify()
        self._thread.join()
        for mailbox in self.service.mailboxes.values():
            for part in (mailbox.relay, mailbox.saver):
                if part is not None:
                    part.close()
        self._control.close(linger=_LINGER_MS)
        self._zap.close(linger=0)
        self._tensors.close(linger=0)
        self._wake.close()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            for source in (self._zap, self._control, self._tensors, self._wake.fileno()):
                poller.register(source, zmq.POLLIN)
            while not self._is_closing:
                poller.poll(round(self._interval_seconds * 1000))
                self._wake.drain()
                self._serve_pending()
        except LaconicError as error:
            print(f"laconic: {error}", file=sys.stderr, flush=True)
            os._exit(EXIT_REFUSED)
        except Exception:  # a server that failed must not look like one that is slow
            traceback.print_exc()
            print("laconic: a server failed, so that its process ends", file=sys.stderr, flush=True)
            os._exit(1)

    def _serve_pending(self) -> None:
        """Handle what has arrived, control messages first: no worker may count as lost because others send much."""
        while (request := receive(self._zap)) is not None:
            self._zap.send_multipart(self._authorise(request))
        while (received := receive(self._control)) is not None:
            identity, *frames = received
            answers, released = self.service.control(identity, frames, time.monotonic())
            self._send_control(identity, answers)
            self._send(released)
        for _ in range(_AT_ONCE):
            try:
                sender, *parts = self._tensors.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._send(self.service.receive(sender.bytes, [part.buffer for part in parts], time.monotonic()))
            self._save()
        self._save()
        self._send(self.service.expire_silent(time.monotonic()))

    def _save(self) -> None:
        for session, message in self.service.save_due():
            self._send_control(session.control_identity, [message])

    def _authorise(self, request: Sequence[bytes]) -> list[bytes]:
        """Answer ZeroMQ's question whether to admit a new connection (ZAP, RFC 27)."""
        version, number, domain, _, _, mechanism, *credentials = [*request, *[b""] * 7][: max(7, len(request))]
        if (domain, mechanism) == (_CONTROL, b"CURVE"):
            admitted = [z85.encode(key) for key in credentials] == [self._keys.workers.public.encode()]
        elif (domain, mechanism) == (_TENSORS, b"PLAIN") and len(credentials) == 2:
            name, password = (text.decode(errors="replace") for text in credentials)
            admitted = self.service.admits(name, password)
        else:
            admitted = False
        self.service.refused["Stranger"] += not admitted
        status, text = (b"200", b"OK") if admitted else (b"400", b"not of this run")
        return [version, number, status, text, b"", b""]

    def _send_control(self, identity: bytes, messages: Sequence[Control]) -> None:
        for message in messages:
            send(self._control, [identity, control.encode(message)])

    def _send(self, outgoing: Outgoing) -> None:
        for session, address, answer in outgoing:
            if session.tensors_identity is None or self._is_in_flight(session, (address, answer.writes, answer.number)):
                continue
            signed = session.authenticator.sign(encode(address, answer))
            tracker = send(self._tensors, [session.tensors_identity, *signed])
            if tracker is not None and answer.message is not None and answer.message.nbytes:
                session.in_flight[address, answer.writes, answer.number] = tracker

    def _is_in_flight(self, session: PeerSession, key: tuple[str, bool, int]) -> bool:
        """Tell whether the same answer is still being sent: a worker that asks again over a slow link must only
        wait."""
        for other in [other for other, tracker in session.in_flight.items() if tracker.done]:
            del session.in_flight[other]
        return key in session.in_flight


def _router(context: zmq.Context[Any], domain: bytes) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.zap_domain = domain
    socket.router_mandatory = 1  # messages to a peer that is gone are dropped
    socket.linger = 0
    return socket

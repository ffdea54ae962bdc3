"""The serving thread: one door for all machines of a process.

Two sockets. The encrypted one (CURVE) admits whoever holds the run's worker key, and hands out a key for the session.
The other carries tensors in the clear, because encrypting them costs several times as much as sending them; it lets in
connections that know the session's password, and believes messages that bear its seal.
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

from laconic.rpc import control
from laconic.rpc.control import Control
from laconic.rpc.frames import Limits, encode
from laconic.rpc.keys import Keys
from laconic.rpc.service import Mailbox, Outgoing, PeerSession, Service
from laconic.rpc.sockets import Wake, hand_over, receive

_ZAP = "inproc://zeromq.zap.01"
_CONTROL, _TENSORS = b"control", b"tensors"
_LAST_WORDS_MS = 500
_QUEUED = 4  # letters of one worker that may wait in memory; more of them wait at the worker
_AT_ONCE = 8  # letters between two looks at everything else


class ServerLoop:
    """Listens from the moment it is made; `admit` puts a machine behind it."""

    def __init__(
        self, context: zmq.Context[Any], keys: Keys, host: str, heartbeat_seconds: float, interval_seconds: float
    ) -> None:
        self._limits = Limits()
        self.service = Service(heartbeat_seconds, interval_seconds, self._limits)
        self._interval_seconds = interval_seconds
        self._keys = keys
        self._wake = Wake()
        self._ends = False
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
        self._thread = threading.Thread(target=self._run, name="laconic-door", daemon=True)
        self._thread.start()

    def admit(self, address: str, mailbox: Mailbox) -> None:
        self.service.expect(mailbox.inbox.senders)
        self.service.mailboxes[address] = mailbox

    def ring(self) -> None:
        """There may be something to do other than a message."""
        self._wake.ring()

    def close(self) -> None:
        self._ends = True
        self._wake.ring()
        self._thread.join()
        for mailbox in self.service.mailboxes.values():
            for part in (mailbox.relay, mailbox.saver):
                if part is not None:
                    part.close()
        self._control.close(linger=_LAST_WORDS_MS)
        self._zap.close(linger=0)
        self._tensors.close(linger=0)
        self._wake.close()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            for source in (self._zap, self._control, self._tensors, self._wake.fileno()):
                poller.register(source, zmq.POLLIN)
            while not self._ends:
                poller.poll(round(self._interval_seconds * 1000))
                self._wake.hear()
                self._turn()
        except Exception:  # a machine that failed must not look like one that is slow
            traceback.print_exc()
            print("laconic: a server failed, so that its process ends", file=sys.stderr, flush=True)
            os._exit(1)

    def _turn(self) -> None:
        """All that has come, control first: a worker that beats is not lost because others send much."""
        while (request := receive(self._zap)) is not None:
            self._zap.send_multipart(self._decide(request))
        while (said := receive(self._control)) is not None:
            identity, *frames = said
            answers, freed = self.service.control(identity, frames, time.monotonic())
            self._say(identity, answers)
            self._send(freed)
        for _ in range(_AT_ONCE):
            try:
                sender, *parts = self._tensors.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            self._send(self.service.receive(sender.bytes, [part.buffer for part in parts], time.monotonic()))
            self._save()
        self._save()
        self._send(self.service.judge(time.monotonic()))

    def _save(self) -> None:
        for session, said in self.service.save_what_is_due():
            self._say(session.spoke_to, [said])

    def _decide(self, request: Sequence[bytes]) -> list[bytes]:
        """ZeroMQ asks about every connection before it exists (ZAP, RFC 27)."""
        version, number, domain, _, _, mechanism, *credentials = [*request, *[b""] * 7][: max(7, len(request))]
        if (domain, mechanism) == (_CONTROL, b"CURVE"):
            fine = [z85.encode(key) for key in credentials] == [self._keys.workers.public.encode()]
        elif (domain, mechanism) == (_TENSORS, b"PLAIN") and len(credentials) == 2:
            name, password = (text.decode(errors="replace") for text in credentials)
            fine = self.service.admits(name, password)
        else:
            fine = False
        self.service.refused["Stranger"] += not fine
        status, text = (b"200", b"OK") if fine else (b"400", b"not of this run")
        return [version, number, status, text, b"", b""]

    def _say(self, identity: bytes, answers: Sequence[Control]) -> None:
        for said in answers:
            hand_over(self._control, [identity, control.encode(said)])

    def _send(self, outgoing: Outgoing) -> None:
        for session, address, answer in outgoing:
            if session.tensors_to is None or self._is_leaving(session, (address, answer.writes, answer.number)):
                continue
            sealed = session.seal.close(encode(address, answer))
            tracker = hand_over(self._tensors, [session.tensors_to, *sealed])
            if tracker is not None and answer.message is not None and answer.message.nbytes:
                session.leaving[address, answer.writes, answer.number] = tracker

    def _is_leaving(self, session: PeerSession, key: tuple[str, bool, int]) -> bool:
        """Whether the same answer is still on its way out: whoever asks again over a slow line must only wait."""
        for other in [other for other, tracker in session.leaving.items() if tracker.done]:
            del session.leaving[other]
        return key in session.leaving


def _router(context: zmq.Context[Any], domain: bytes) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(zmq.ROUTER)
    socket.zap_domain = domain
    socket.router_mandatory = 1  # to a peer that is gone nothing is kept
    socket.linger = 0
    return socket

"""A worker's connection to one server process: two sockets, a session, and the messages still to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq

from laconic.rpc import control
from laconic.rpc.authentication import KEY_BYTES, MessageAuthenticator
from laconic.rpc.control import Control, Welcome
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Buffer, Limits, Malformed, bytes_in, decode_answer, encode
from laconic.rpc.keys import Keys
from laconic.rpc.sockets import receive, send

_QUEUED = 64  # messages that wait in ZeroMQ; their tensors are not copied


class Connection:
    """A worker's sockets and session with one server process.

    Only the client loop's thread uses the sockets; whoever holds that loop's lock may append to `unsent`.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        keys: Keys,
        authenticators: dict[bytes, MessageAuthenticator],
        endpoint: str,
        now: float,
    ) -> None:
        self.endpoint = endpoint
        self._authenticators = (
            authenticators  # by session, of all connections: one that is opened again continues the count
        )
        self.last_received_seconds = now
        self.authenticator: MessageAuthenticator | None = None
        self.unsent: deque[tuple[str, Envelope]] = deque()
        self.ready: set[str] = set()  # addresses that this session may write to
        self.left = False
        self._context, self._limits = context, Limits()
        self._in_flight: deque[zmq.MessageTracker] = deque()
        self._tensors: zmq.Socket[Any] | None = None
        self._control = context.socket(zmq.DEALER)
        self._control.linger = 0
        self._control.ipv6 = "[" in endpoint
        self._control.curve_serverkey = keys.servers.public.encode()
        self._control.curve_publickey = keys.workers.public.encode()
        self._control.curve_secretkey = keys.workers.secret.encode()
        self._control.connect(endpoint)

    def open_session(self, welcome: Welcome) -> None:
        """Open the session unless it is open already; what was sent in another session may be lost."""
        if self.authenticator is not None and self.authenticator.session == welcome.session:
            return
        if len(welcome.key) != KEY_BYTES:
            raise Malformed("a key of another length")
        self.forget_session()
        self.authenticator = self._authenticators.setdefault(
            welcome.session, MessageAuthenticator.of_worker(welcome.session, welcome.key)
        )
        self._tensors = self._context.socket(zmq.DEALER)
        self._tensors.linger = 0
        self._tensors.sndhwm = _QUEUED
        self._tensors.ipv6 = "[" in self.endpoint
        self._tensors.plain_username = welcome.session.hex().encode()
        self._tensors.plain_password = welcome.password.encode()
        self._tensors.maxmsgsize = self._limits.nbytes
        self._tensors.connect(f"{self.endpoint.rpartition(':')[0]}:{welcome.port}")

    def forget_session(self) -> None:
        """Drop the session, its socket for tensors and whatever was not sent."""
        self.authenticator = None
        self.ready.clear()
        self.unsent.clear()
        self._in_flight.clear()
        if self._tensors is not None:
            self._tensors.close(linger=0)
            self._tensors = None

    def close(self) -> None:
        self.forget_session()
        self._control.close(linger=0)

    def send_control(self, message: Control) -> None:
        """Send a message over the encrypted socket."""
        send(self._control, [control.encode(message)])

    def sources(self) -> Iterator[tuple[zmq.Socket[Any], int]]:
        """Yield the sockets to poll and for what: incoming messages, and room for unsent ones."""
        yield self._control, zmq.POLLIN
        if self._tensors is not None:
            yield self._tensors, zmq.POLLIN | (zmq.POLLOUT if self.unsent else 0)

    def receive_control(self) -> Iterator[bytes]:
        """Yield the control messages that have arrived."""
        while (frames := receive(self._control)) is not None:
            yield frames[-1]

    def receive_answers(self) -> Iterator[list[Buffer]]:
        """Yield the answers that have arrived, not yet verified."""
        while self._tensors is not None:
            try:
                frames = self._tensors.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield [frame.buffer for frame in frames]

    def decode(self, frames: list[Buffer]) -> tuple[str, Answer]:
        """Verify and decode an answer: the actor's address and the answer."""
        if self.authenticator is None:
            raise Malformed("an answer without a session")
        return decode_answer(self.authenticator.verify(frames), self._limits)

    def send_next(self) -> tuple[str, str, tuple[int, int]] | None:
        """Send the next message if ZeroMQ accepts one; return its address, kind, bytes of tensors and all other
        bytes."""
        if not self.unsent or self._tensors is None or self.authenticator is None:
            return None
        if not self._tensors.poll(0, zmq.POLLOUT):
            return None
        address, envelope = self.unsent.popleft()
        frames = encode(address, envelope)
        tracker = send(self._tensors, self.authenticator.sign(frames))
        if tracker is not None and envelope.message.nbytes:
            self._in_flight.append(tracker)
        return address, envelope.message.kind, bytes_in([len(frame) for frame in frames])

    @property
    def is_sending(self) -> bool:
        """Whether some messages have not left this host yet, so that no answer can be expected."""
        while self._in_flight and self._in_flight[0].done:
            self._in_flight.popleft()
        return bool(self.unsent or self._in_flight)

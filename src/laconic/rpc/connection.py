"""One server process as a worker sees it: two connections, a session, and what still has to go there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import zmq

from laconic.rpc import control
from laconic.rpc.authentication import KEY_BYTES, MessageSeal
from laconic.rpc.control import Control, Welcome
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import Buffer, Limits, Malformed, bytes_in, decode_answer, encode
from laconic.rpc.keys import Keys
from laconic.rpc.sockets import hand_over, receive

_QUEUED = 64  # letters that wait in ZeroMQ; their tensors are not copied


class Connection:
    """Only the calling thread touches its sockets; `unsent` may be added to by whoever holds the callers' lock."""

    def __init__(
        self, context: zmq.Context[Any], keys: Keys, seals: dict[bytes, MessageSeal], endpoint: str, now: float
    ) -> None:
        self.endpoint = endpoint
        self._seals = seals  # by session, of all lines: one that is opened again goes on counting
        self.heard_seconds = now
        self.seal: MessageSeal | None = None
        self.unsent: deque[tuple[str, Envelope]] = deque()
        self.ready: set[str] = set()  # addresses that this session may write to
        self.left = False
        self._context, self._limits = context, Limits()
        self._under_way: deque[zmq.MessageTracker] = deque()
        self._tensors: zmq.Socket[Any] | None = None
        self._control = context.socket(zmq.DEALER)
        self._control.linger = 0
        self._control.ipv6 = "[" in endpoint
        self._control.curve_serverkey = keys.servers.public.encode()
        self._control.curve_publickey = keys.workers.public.encode()
        self._control.curve_secretkey = keys.workers.secret.encode()
        self._control.connect(endpoint)

    def welcomed(self, welcome: Welcome) -> None:
        """Open the session, unless it is open: nothing that was sent in another can be counted on."""
        if self.seal is not None and self.seal.session == welcome.session:
            return
        if len(welcome.key) != KEY_BYTES:
            raise Malformed("a key of another length")
        self.forget_session()
        self.seal = self._seals.setdefault(welcome.session, MessageSeal.of_worker(welcome.session, welcome.key))
        self._tensors = self._context.socket(zmq.DEALER)
        self._tensors.linger = 0
        self._tensors.sndhwm = _QUEUED
        self._tensors.ipv6 = "[" in self.endpoint
        self._tensors.plain_username = welcome.session.hex().encode()
        self._tensors.plain_password = welcome.password.encode()
        self._tensors.maxmsgsize = self._limits.nbytes
        self._tensors.connect(f"{self.endpoint.rpartition(':')[0]}:{welcome.port}")

    def forget_session(self) -> None:
        self.seal = None
        self.ready.clear()
        self.unsent.clear()
        self._under_way.clear()
        if self._tensors is not None:
            self._tensors.close(linger=0)
            self._tensors = None

    def close(self) -> None:
        self.forget_session()
        self._control.close(linger=0)

    def say(self, said: Control) -> None:
        hand_over(self._control, [control.encode(said)])

    def sources(self) -> Iterator[tuple[zmq.Socket[Any], int]]:
        """What to wait for: messages, and room for what is unsent."""
        yield self._control, zmq.POLLIN
        if self._tensors is not None:
            yield self._tensors, zmq.POLLIN | (zmq.POLLOUT if self.unsent else 0)

    def said(self) -> Iterator[bytes]:
        """Control messages that have come."""
        while (frames := receive(self._control)) is not None:
            yield frames[-1]

    def answered(self) -> Iterator[list[Buffer]]:
        """Letters that have come, still sealed."""
        while self._tensors is not None:
            try:
                frames = self._tensors.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield [frame.buffer for frame in frames]

    def read(self, frames: list[Buffer]) -> tuple[str, Answer]:
        if self.seal is None:
            raise Malformed("an answer without a session")
        return decode_answer(self.seal.open(frames), self._limits)

    def send_next(self) -> tuple[str, str, tuple[int, int]] | None:
        """Hand the next letter to ZeroMQ if it takes one: its address and kind, its bytes of tensors and all others."""
        if not self.unsent or self._tensors is None or self.seal is None:
            return None
        if not self._tensors.poll(0, zmq.POLLOUT):
            return None
        address, envelope = self.unsent.popleft()
        frames = encode(address, envelope)
        tracker = hand_over(self._tensors, self.seal.close(frames))
        if tracker is not None and envelope.message.nbytes:
            self._under_way.append(tracker)
        return address, envelope.message.kind, bytes_in([len(frame) for frame in frames])

    @property
    def is_sending(self) -> bool:
        """Whether letters have not left this machine yet: nobody could have answered them."""
        while self._under_way and self._under_way[0].done:
            self._under_way.popleft()
        return bool(self.unsent or self._under_way)

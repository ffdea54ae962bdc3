"""A hostile member of a run: it has the keys and a session of its own, and sends the server nonsense of every kind."""

from __future__ import annotations

import random
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zmq

from laconic.rpc import control
from laconic.rpc.authentication import MessageAuthenticator, make_key
from laconic.rpc.control import Beat, Hello, Welcome
from laconic.rpc.directory import FileDirectory
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import encode
from laconic.rpc.keys import Keys
from laconic.worker import ActorMessage
from tests.rpc.test_fuzz import corrupted, message_frames

KINDS = ("forged", "corrupted", "nonsense", "control", "bytes")


class HostileMember:
    """Worker 1 of a run whose server is found through a folder, as in `tests.rpc.processes`."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.sent: Counter[str] = Counter()
        self._draw = random.Random(seed)
        self._context: zmq.Context[Any] = zmq.Context()
        endpoint = FileDirectory(folder / "directory").find("s")
        assert endpoint is not None
        keys = Keys.read(folder / "keys")
        self._encrypted = self._dealer()
        self._encrypted.curve_serverkey = keys.servers.public.encode()
        self._encrypted.curve_publickey = keys.workers.public.encode()
        self._encrypted.curve_secretkey = keys.workers.secret.encode()
        self._encrypted.connect(endpoint)
        self._encrypted.send(control.encode(Hello(control.VERSION, 1, 0, b"t" * 16, ["s"])))
        welcome = control.decode(self._encrypted.recv())
        assert isinstance(welcome, Welcome)
        self._session = welcome.session
        self._own = MessageAuthenticator.of_worker(welcome.session, welcome.key)
        self._other = MessageAuthenticator.of_worker(welcome.session, make_key())
        self._ports = [urlsplit(endpoint).port, welcome.port]
        self._tensors = self._dealer()
        self._tensors.plain_username = welcome.session.hex().encode()
        self._tensors.plain_password = welcome.password.encode()
        self._tensors.connect(f"{endpoint.rpartition(':')[0]}:{welcome.port}")

    def _dealer(self) -> zmq.Socket[Any]:
        made: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        made.linger, made.sndtimeo, made.rcvtimeo = 0, 60_000, 60_000
        return made

    def send(self, count: int) -> None:
        """Send so many messages: with another key, changed on the way, signed nonsense, control messages, raw bytes."""
        for number in range(count):
            kind = "bytes" if number % 500 == 499 else self._draw.choices(KINDS[:4], (4, 4, 4, 1))[0]
            getattr(self, f"_{kind}")()
            self.sent[kind] += 1
            for answered in (self._tensors, self._encrypted):
                with suppress(zmq.Again):
                    while True:
                        answered.recv_multipart(zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _forged(self) -> None:
        """A push in its own session or in a guessed one, under another key."""
        frames = list(map(bytes, self._other.sign(message_frames(self._draw.randint(1, 9)))))
        if self._draw.random() < 0.3:
            frames[0] = self._draw.randbytes(16) + frames[0][16:]
        self._tensors.send_multipart(corrupted(frames, self._draw) or [b""])

    def _corrupted(self) -> None:
        """A push that it signed, and that was changed or cut on the way."""
        frames = list(map(bytes, self._own.sign(message_frames(1))))
        changed = corrupted(frames, self._draw)
        while changed == frames:
            changed = corrupted(frames, self._draw)
        self._tensors.send_multipart(changed or [b""])

    def _nonsense(self) -> None:
        """Nonsense that it signed itself, made from a message that only reads."""
        fields = {"version": self._draw.choice((0, -1, 2.5, "x", True)), "step": 0}
        kind = self._draw.choice(("pull", "pull", "result", "", "no such kind", "tell"))
        envelope = Envelope(1, 0, self._draw.randint(1, 2**40), kind == "tell", 1, 0, ActorMessage(kind, fields, ()))
        frames = list(map(bytes, encode(self._draw.choice(("s", "s", "t")), envelope)))
        changed = corrupted(frames, self._draw)
        self._tensors.send_multipart(list(map(bytes, self._own.sign(changed or [b""]))))

    def _control(self) -> None:
        """A heartbeat that was changed; it arrives over the encrypted socket."""
        self._encrypted.send_multipart(corrupted([control.encode(Beat(self._session))], self._draw) or [b""])

    def _bytes(self) -> None:
        """Bytes that are no message of ZeroMQ's."""
        for port in self._ports:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
                raw.sendall(self._draw.choice((b"GET / HTTP/1.0\r\n\r\n", b"\xff" + bytes(8) + b"\x7f")) + bytes(99))

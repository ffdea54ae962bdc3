"""The server's logic without its sockets: sessions, authentication of messages, and answers to them."""

from __future__ import annotations

import hmac
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from laconic.rpc import control
from laconic.rpc.authentication import SESSION_BYTES, AuthenticationError, MessageAuthenticator, make_key, session_of
from laconic.rpc.control import Beat, Control, Goodbye, Hello, Refused, Save, Saved, Unknown, Welcome
from laconic.rpc.envelope import Answer
from laconic.rpc.frames import Buffer, Limits, Malformed, decode_envelope
from laconic.rpc.inbox import Inbox
from laconic.rpc.relay import Relay
from laconic.rpc.saver import Saver


@dataclass(eq=False)
class Mailbox:
    """An actor that is served here, with its inbox and what saves it and sends for it."""

    inbox: Inbox
    saver: Saver | None = None
    relay: Relay | None = None

    def forward_outgoing(self) -> None:
        """Send the messages that the actor has for other actors."""
        outgoing, self.inbox.actor.outgoing = self.inbox.actor.outgoing, []
        if outgoing and self.relay is not None:
            self.relay.send(outgoing)

    @property
    def is_due(self) -> bool:
        """Whether to save now. A snapshot that holds a write must not lack the messages which that write made the actor
        send, so it waits until these are answered."""
        return self.saver is not None and self.saver.due and (self.relay is None or self.relay.is_idle)


@dataclass(eq=False)
class PeerSession:
    """A session with one worker in one of its lives."""

    worker: int
    life: int
    token: bytes
    key: bytes = field(repr=False)
    authenticator: MessageAuthenticator
    password: str = field(repr=False)
    control_identity: bytes  # of its control socket's peer
    last_received_seconds: float
    tensors_identity: bytes | None = None
    left: bool = False
    in_flight: dict[tuple[str, bool, int], Any] = field(default_factory=dict)  # answers still being sent

    @property
    def name(self) -> bytes:
        return self.authenticator.session

    @property
    def title(self) -> str:
        return f"worker {self.worker}" if self.worker >= 0 else "another server"


Outgoing = list[tuple[PeerSession, str, Answer]]


class Service:
    """All actors of one process and the sessions with their workers.

    Only the server loop's thread uses it, except for `mailboxes`.
    """

    def __init__(self, heartbeat_seconds: float, interval_seconds: float, limits: Limits | None = None) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        self.port = 0
        self.sessions: dict[bytes, PeerSession] = {}
        self.refused: Counter[str] = Counter()
        self.left: set[int] = set()
        self.silent: dict[int, float] = {}  # lost workers, and when something last arrived from them
        self._workers: dict[int, PeerSession] = {}
        self._expected: dict[int, float | None] = {}  # since when, once it was checked
        self._limits = limits or Limits()
        self._heartbeat_seconds, self._interval_seconds = heartbeat_seconds, interval_seconds
        self._checked_seconds: float | None = None

    def expect(self, workers: Sequence[int]) -> None:
        """Wait for the workers that a restored actor knows; one that does not return in time is lost."""
        for worker in workers:
            if worker >= 0 and worker not in self._workers:
                self._expected.setdefault(worker, None)

    # ------------------------------------------------------------------------------------------ tensor messages

    def receive(self, identity: bytes, frames: Sequence[Buffer], now: float) -> Outgoing:
        """Take in one message from the tensors' socket and return the answers to send; what belongs to no session is
        counted and dropped."""
        try:
            session = self.sessions.get(session_of(frames))
            if session is None:
                raise AuthenticationError("a message of no known session")
            address, envelope = decode_envelope(session.authenticator.verify(frames), self._limits)
            if (envelope.sender, envelope.life) != (session.worker, session.life):
                raise AuthenticationError("a message in another worker's name")
            if address not in self.mailboxes:
                raise Malformed(f"a message to {address!r}, which is not served here")
        except Malformed as error:
            self.refused[type(error).__name__] += 1
            return []
        session.tensors_identity = identity
        self._alive(session, now)
        mailbox = self.mailboxes[address]
        answers = mailbox.inbox.receive(envelope)
        mailbox.forward_outgoing()
        if mailbox.saver is not None and envelope.writes:
            mailbox.saver.wrote(envelope.message.nbytes)
        return self._addressed(address, answers)

    def expire_silent(self, now: float) -> Outgoing:
        """Give up workers that have been silent for too long, and return the answers to those that waited for them.

        Time in which this process itself was suspended does not count.
        """
        checked = self._checked_seconds if self._checked_seconds is not None else now
        unobserved = max(0.0, now - checked - 3 * self._interval_seconds)
        self._checked_seconds = now
        released: Outgoing = []
        for worker, since in list(self._expected.items()):
            since = now if since is None else since + unobserved
            self._expected[worker] = since
            if now - since > self._heartbeat_seconds:
                del self._expected[worker]
                self.silent[worker] = since
                _print(f"worker {worker} has not returned to this server and is waited for no longer")
                released += self._lose(worker)
        for session in self._workers.values():
            session.last_received_seconds += unobserved
            silence = now - session.last_received_seconds
            lost = session.worker in self.silent or session.left
            if not lost and silence > self._heartbeat_seconds:
                self.silent[session.worker] = session.last_received_seconds
                _print(f"{session.title} has been silent for {silence:.1f} s and is waited for no longer")
                released += self._lose(session.worker)
        return released

    # ------------------------------------------------------------------------------------------ control

    def control(self, identity: bytes, frames: Sequence[bytes], now: float) -> tuple[list[Control], Outgoing]:
        """Take in one message from the encrypted socket; return what to send back there, and answers that are now
        due."""
        try:
            if len(frames) != 1:
                raise Malformed("a control message is one frame")
            message = control.decode(frames[0])
            if isinstance(message, Hello):
                return [self._hello(identity, message, now)], []
            if not isinstance(message, Beat | Save | Goodbye):
                raise Malformed("a server's control message from a worker")
        except Malformed as error:
            self.refused[type(error).__name__] += 1
            return [], []
        session = self.sessions.get(message.session)
        if session is None:
            return [Unknown(message.session)], []
        session.control_identity = identity
        self._alive(session, now)
        if isinstance(message, Beat):
            return [message], []
        if isinstance(message, Save):
            return self._save(session, message.address), []
        session.left = True
        self.left.add(session.worker)
        return [message], self._lose(session.worker)

    def admits(self, name: str, password: str) -> bool:
        """Tell whether a connection for tensors may be made under this name."""
        try:
            session = self.sessions.get(bytes.fromhex(name))
        except ValueError:
            return False
        return session is not None and hmac.compare_digest(session.password.encode(), password.encode())

    def _hello(self, identity: bytes, hello: Hello, now: float) -> Control:
        known = self._workers.get(hello.worker)
        here = {address: self.mailboxes[address].inbox for address in hello.addresses if address in self.mailboxes}
        progress = {address: inbox.progress(hello.worker, hello.life) for address, inbox in here.items()}
        if (known is not None and hello.life < known.life) or None in progress.values():
            return Refused(f"worker {hello.worker} was started again since: this process is its past and should end")
        if known is not None and hello.life == known.life and hello.token != known.token:
            return Refused(
                f"another process already sends as worker {hello.worker} in its life {hello.life}: two workers have "
                "one number, or one was started again without a new life"
            )
        if known is None or known.token != hello.token:
            known = self._open(identity, hello, known, now)
        known.control_identity, known.left = identity, False
        self.left.discard(hello.worker)
        self._alive(known, now)
        mailboxes = {address: (here[address].epoch, *far) for address, far in progress.items() if far is not None}
        return Welcome(control.VERSION, known.name, known.key, known.password, self.port, mailboxes)

    def _open(self, identity: bytes, hello: Hello, former: PeerSession | None, now: float) -> PeerSession:
        if former is not None:
            del self.sessions[former.name]
        name, key = secrets.token_bytes(SESSION_BYTES), make_key()
        authenticator = MessageAuthenticator.of_server(name, key)
        session = PeerSession(
            hello.worker, hello.life, hello.token, key, authenticator, secrets.token_hex(16), identity, now
        )
        self.sessions[name] = self._workers[hello.worker] = session
        self._expected.pop(hello.worker, None)
        return session

    # ------------------------------------------------------------------------------------------ snapshots

    def save_due(self) -> list[tuple[PeerSession, Control]]:
        """Begin the snapshots that are due, and return reports to workers on those that have reached the disk."""
        reports: list[tuple[PeerSession, Control]] = []
        for address, mailbox in list(self.mailboxes.items()):
            if mailbox.saver is None:
                continue
            state = mailbox.saver.finished()
            if state is not None:
                mailbox.inbox.saved(state)
                reports += [(session, self._saved(session, address)) for session in self._workers.values()]
            if mailbox.is_due:
                mailbox.saver.begin(mailbox.inbox.state())
        return reports

    def _save(self, session: PeerSession, address: str) -> list[Control]:
        mailbox = self.mailboxes.get(address)
        if mailbox is None:
            return []
        if mailbox.saver is not None:
            mailbox.saver.ask()
            return []
        return [self._saved(session, address)]

    def _saved(self, session: PeerSession, address: str) -> Saved:
        progress = self.mailboxes[address].inbox.progress(session.worker, session.life)
        return Saved(session.name, address, 0 if progress is None else progress[1])

    # ------------------------------------------------------------------------------------------ inside

    def _alive(self, session: PeerSession, now: float) -> None:
        session.last_received_seconds = now
        if self.silent.pop(session.worker, None) is not None:
            _print(f"{session.title} is back")

    def _lose(self, worker: int) -> Outgoing:
        released: Outgoing = []
        if worker < 0:  # an actor, which no rule waits for
            return released
        for address, mailbox in list(self.mailboxes.items()):
            released += self._addressed(address, mailbox.inbox.lose(worker))
            mailbox.forward_outgoing()
        return released

    def _addressed(self, address: str, answers: Sequence[Answer]) -> Outgoing:
        known = [(self._workers.get(answer.to), answer) for answer in answers]
        return [(session, address, answer) for session, answer in known if session and session.life == answer.life]


def _print(text: str) -> None:
    print(f"laconic: {text}", file=sys.stderr, flush=True)

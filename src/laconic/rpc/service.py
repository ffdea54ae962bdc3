"""A serving process without its sockets: who speaks, whether to believe it, and what to answer."""

from __future__ import annotations

import hmac
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from laconic.rpc import control
from laconic.rpc.authentication import SESSION_BYTES, Forged, MessageSeal, make_key, session_of
from laconic.rpc.control import Beat, Control, Goodbye, Hello, Refused, Save, Saved, Unknown, Welcome
from laconic.rpc.envelope import Answer
from laconic.rpc.frames import Buffer, Limits, Malformed, decode_envelope
from laconic.rpc.inbox import Inbox
from laconic.rpc.relay import Relay
from laconic.rpc.saver import Saver


@dataclass(eq=False)
class Mailbox:
    """One machine that is served here."""

    inbox: Inbox
    saver: Saver | None = None
    relay: Relay | None = None

    def pass_on(self) -> None:
        """What the machine wants others to hear."""
        outgoing, self.inbox.actor.outgoing = self.inbox.actor.outgoing, []
        if outgoing and self.relay is not None:
            self.relay.send(outgoing)

    @property
    def is_due(self) -> bool:
        """A snapshot that holds a write must not be without what the write made the machine say."""
        return self.saver is not None and self.saver.due and (self.relay is None or self.relay.is_quiet)


@dataclass(eq=False)
class PeerSession:
    """One worker in one life, as this process knows it."""

    worker: int
    life: int
    token: bytes
    key: bytes = field(repr=False)
    seal: MessageSeal
    password: str = field(repr=False)
    spoke_to: bytes  # where control messages go
    heard_seconds: float
    tensors_to: bytes | None = None
    left: bool = False
    leaving: dict[tuple[str, bool, int], Any] = field(default_factory=dict)  # answers still being sent

    @property
    def name(self) -> bytes:
        return self.seal.session

    @property
    def title(self) -> str:
        return f"worker {self.worker}" if self.worker >= 0 else "another server"


Outgoing = list[tuple[PeerSession, str, Answer]]


class Service:
    """All machines of one process behind one door. Only the serving thread touches it, `mailboxes` apart."""

    def __init__(self, heartbeat_seconds: float, interval_seconds: float, limits: Limits | None = None) -> None:
        self.mailboxes: dict[str, Mailbox] = {}
        self.port = 0
        self.sessions: dict[bytes, PeerSession] = {}
        self.refused: Counter[str] = Counter()
        self.left: set[int] = set()
        self.silent: dict[int, float] = {}  # lost workers, and when they were heard last
        self._workers: dict[int, PeerSession] = {}
        self._expected: dict[int, float | None] = {}  # since when, as soon as anybody looked
        self._limits = limits or Limits()
        self._heartbeat_seconds, self._interval_seconds = heartbeat_seconds, interval_seconds
        self._looked_seconds: float | None = None

    def expect(self, workers: Sequence[int]) -> None:
        """Those a restored machine counts on: who does not return in time is lost too."""
        for worker in workers:
            if worker >= 0 and worker not in self._workers:
                self._expected.setdefault(worker, None)

    # ------------------------------------------------------------------------------------------ letters

    def receive(self, identity: bytes, frames: Sequence[Buffer], now: float) -> Outgoing:
        """One message from the tensors' socket; what is not a letter of a session is counted and dropped."""
        try:
            session = self.sessions.get(session_of(frames))
            if session is None:
                raise Forged("a message of no session")
            address, envelope = decode_envelope(session.seal.open(frames), self._limits)
            if (envelope.sender, envelope.life) != (session.worker, session.life):
                raise Forged("a letter in another worker's name")
            if address not in self.mailboxes:
                raise Malformed(f"a letter to {address!r}, where nobody is")
        except Malformed as error:
            self.refused[type(error).__name__] += 1
            return []
        session.tensors_to = identity
        self._alive(session, now)
        mailbox = self.mailboxes[address]
        answers = mailbox.inbox.receive(envelope)
        mailbox.pass_on()
        if mailbox.saver is not None and envelope.writes:
            mailbox.saver.wrote(envelope.message.nbytes)
        return self._addressed(address, answers)

    def judge(self, now: float) -> Outgoing:
        """Workers that have been silent for too long are lost. Time in which nobody listened does not count."""
        looked = self._looked_seconds if self._looked_seconds is not None else now
        blind = max(0.0, now - looked - 3 * self._interval_seconds)
        self._looked_seconds = now
        freed: Outgoing = []
        for worker, since in list(self._expected.items()):
            since = now if since is None else since + blind
            self._expected[worker] = since
            if now - since > self._heartbeat_seconds:
                del self._expected[worker]
                self.silent[worker] = since
                _say(f"worker {worker} has not returned to this server and is waited for no longer")
                freed += self._lose(worker)
        for session in self._workers.values():
            session.heard_seconds += blind
            silence = now - session.heard_seconds
            lost = session.worker in self.silent or session.left
            if not lost and silence > self._heartbeat_seconds:
                self.silent[session.worker] = session.heard_seconds
                _say(f"{session.title} has been silent for {silence:.1f} s and is waited for no longer")
                freed += self._lose(session.worker)
        return freed

    # ------------------------------------------------------------------------------------------ control

    def control(self, identity: bytes, frames: Sequence[bytes], now: float) -> tuple[list[Control], Outgoing]:
        """One message from the encrypted socket: what to say back there, and whom it sets free."""
        try:
            if len(frames) != 1:
                raise Malformed("a control message is one frame")
            said = control.decode(frames[0])
            if isinstance(said, Hello):
                return [self._hello(identity, said, now)], []
            if not isinstance(said, Beat | Save | Goodbye):
                raise Malformed("a server's word from a worker")
        except Malformed as error:
            self.refused[type(error).__name__] += 1
            return [], []
        session = self.sessions.get(said.session)
        if session is None:
            return [Unknown(said.session)], []
        session.spoke_to = identity
        self._alive(session, now)
        if isinstance(said, Beat):
            return [said], []
        if isinstance(said, Save):
            return self._save(session, said.address), []
        session.left = True
        self.left.add(session.worker)
        return [said], self._lose(session.worker)

    def admits(self, name: str, password: str) -> bool:
        """Whether a connection for tensors may be made under this name."""
        try:
            session = self.sessions.get(bytes.fromhex(name))
        except ValueError:
            return False
        return session is not None and hmac.compare_digest(session.password.encode(), password.encode())

    def _hello(self, identity: bytes, said: Hello, now: float) -> Control:
        known = self._workers.get(said.worker)
        here = {address: self.mailboxes[address].inbox for address in said.addresses if address in self.mailboxes}
        progress = {address: inbox.progress(said.worker, said.life) for address, inbox in here.items()}
        if (known is not None and said.life < known.life) or None in progress.values():
            return Refused(f"worker {said.worker} was started again since: this process is its past and should end")
        if known is not None and said.life == known.life and said.token != known.token:
            return Refused(
                f"another process already speaks for worker {said.worker} in its life {said.life}: two workers have "
                "one number, or one was started again without being told so"
            )
        if known is None or known.token != said.token:
            known = self._open(identity, said, known, now)
        known.spoke_to, known.left = identity, False
        self.left.discard(said.worker)
        self._alive(known, now)
        mailboxes = {address: (here[address].epoch, *far) for address, far in progress.items() if far is not None}
        return Welcome(control.VERSION, known.name, known.key, known.password, self.port, mailboxes)

    def _open(self, identity: bytes, said: Hello, former: PeerSession | None, now: float) -> PeerSession:
        if former is not None:
            del self.sessions[former.name]
        name, key = secrets.token_bytes(SESSION_BYTES), make_key()
        seal = MessageSeal.of_server(name, key)
        session = PeerSession(said.worker, said.life, said.token, key, seal, secrets.token_hex(16), identity, now)
        self.sessions[name] = self._workers[said.worker] = session
        self._expected.pop(said.worker, None)
        return session

    # ------------------------------------------------------------------------------------------ snapshots

    def save_what_is_due(self) -> list[tuple[PeerSession, Control]]:
        """Between two letters: begin snapshots, and tell workers of those that have reached the disk."""
        told: list[tuple[PeerSession, Control]] = []
        for address, mailbox in list(self.mailboxes.items()):
            if mailbox.saver is None:
                continue
            state = mailbox.saver.finished()
            if state is not None:
                mailbox.inbox.saved(state)
                told += [(session, self._saved(session, address)) for session in self._workers.values()]
            if mailbox.is_due:
                mailbox.saver.begin(mailbox.inbox.state())
        return told

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
        session.heard_seconds = now
        if self.silent.pop(session.worker, None) is not None:
            _say(f"{session.title} is back")

    def _lose(self, worker: int) -> Outgoing:
        freed: Outgoing = []
        if worker < 0:  # a machine, which nobody counts on
            return freed
        for address, mailbox in list(self.mailboxes.items()):
            freed += self._addressed(address, mailbox.inbox.lose(worker))
            mailbox.pass_on()
        return freed

    def _addressed(self, address: str, answers: Sequence[Answer]) -> Outgoing:
        known = [(self._workers.get(answer.to), answer) for answer in answers]
        return [(session, address, answer) for session, answer in known if session and session.life == answer.life]


def _say(text: str) -> None:
    print(f"laconic: {text}", file=sys.stderr, flush=True)

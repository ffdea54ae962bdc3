"""Letters on the virtual clock: machines live at nodes of the network and react when something arrives.

The very same boxes as in real runs stand at both ends. A machine may be killed and return from its last snapshot, and
links may be cut: what travels then is lost, and whoever waits says it again when the trouble is over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from laconic.collective import flows
from laconic.errors import LaconicError, WorkerLost
from laconic.network.levels import Network
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import wire_bytes
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.runtime.ledger import Ledger
from laconic.virtual.clock import Clock, Operation
from laconic.worker import Home, Letter, Machine


class World(Protocol):
    """What messages need of a simulation: its clock, its network, and when a silent server is given up."""

    @property
    def clock(self) -> Clock: ...
    @property
    def network(self) -> Network: ...
    @property
    def heartbeat_seconds(self) -> float: ...


Sizes = tuple[int, int]
"""Bytes of a message's tensors, and all others."""


@dataclass(frozen=True)
class Trouble:
    """From one time to another a server is dead (`worker` is None), or a worker cannot reach it."""

    begin_seconds: float
    end_seconds: float
    server: int
    worker: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.begin_seconds < self.end_seconds:
            raise LaconicError(f"trouble begins before it ends: {self}")


@dataclass(frozen=True)
class Troubles:
    """What goes wrong, and when whoever waits says it again; servers save themselves every so many writes."""

    each: tuple[Trouble, ...] = ()
    retry_seconds: float = 0.5
    snapshot_every: int = 16

    def blocks(self, seconds: float, server: int, worker: int) -> bool:
        return any(
            t.server == server and t.begin_seconds <= seconds < t.end_seconds and t.worker in (None, worker)
            for t in self.each
        )


@dataclass(frozen=True)
class Trip:
    """A letter that was under way between two nodes of the network, and when."""

    kind: str
    source: int
    to: int
    nbytes: int  # of its tensors
    begin_seconds: float
    end_seconds: float


@dataclass(eq=False)
class Office:
    """Where one machine lives."""

    address: str
    number: int  # under which it speaks to other machines
    node: int
    server: int
    build: Callable[[], Machine]
    inbox: Inbox
    snapshot: dict[str, Any] | None = None
    writes: int = 0
    calls: list[tuple[float, int, str]] = field(default_factory=list)  # when what arrived from whom, for whoever asks


class Call(Operation):
    """A letter that will be answered."""

    letter: Letter | None = None


@dataclass(eq=False)
class _Line:
    """One worker's letters to one machine: they arrive in the order in which they left."""

    outbox: Outbox
    node: int
    life: int
    waiting: dict[tuple[bool, int], Call] = field(default_factory=dict)
    flying: deque[list[Any]] = field(default_factory=deque)  # [envelope, whether it is there]


class Posts:
    """All machines of a simulation and all lines to them."""

    def __init__(self, world: World, servers: int, size: int, troubles: Troubles | None = None) -> None:
        self._world, self._servers, self._size = world, servers, size
        self._troubles = troubles or Troubles()
        self.offices: dict[str, Office] = {}
        self.trips: list[Trip] = []  # of tensors, for whoever asks
        self._lines: dict[tuple[int, str], _Line] = {}
        self._lives: dict[int, int] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._gone: set[int] = set()
        for trouble in self._troubles.each:
            if trouble.worker is None and math.isinf(trouble.end_seconds):
                noticed = trouble.begin_seconds + world.heartbeat_seconds
                world.clock.at(noticed, partial(self._give_up, trouble.server, noticed))
                continue
            if trouble.worker is None:
                world.clock.at(trouble.end_seconds, partial(self._revive, trouble.server))
            later = trouble.end_seconds + self._troubles.retry_seconds
            world.clock.at(later, partial(self._say_again, trouble.server, later))

    def begin_life(self, rank: int, ledger: Ledger) -> None:
        """A worker is born, perhaps again: its old lines are nobody's."""
        self._ledgers[rank] = ledger
        self._lives[rank] = self._lives.get(rank, -1) + 1
        for key in [key for key in self._lines if key[0] == rank]:
            del self._lines[key]

    def host(self, address: str, home: Home, build: Callable[[], Machine], absent: Sequence[int]) -> None:
        """The first to ask builds it. Whoever is not there from the start is not waited for."""
        if address in self.offices:
            return
        server = home.number % self._servers if home.on == "server" and self._servers else home.number % self._size
        node = self._size + server if home.on == "server" and self._servers else server
        office = self.offices[address] = Office(address, -1 - len(self.offices), node, server, build, Inbox(build()))
        for rank in absent:
            office.inbox.machine.lose(rank)
        if self._troubles.each:
            office.snapshot = office.inbox.state()

    def call(self, rank: int, address: str, letter: Letter, writes: bool, seconds: float) -> Call:
        if address not in self.offices:
            raise LaconicError(f"nobody is at the address {address!r}")
        office, line = self.offices[address], self._line(rank, address, rank, self._lives.get(rank, 0))
        envelope = line.outbox.post(letter, writes)
        call = line.waiting[writes, envelope.number] = Call(f"{letter.kind} at {address}")
        if office.server in self._gone:
            del line.waiting[writes, envelope.number]
            self._world.clock.end(call, seconds, _lost(office.server))
        else:
            self._send(line, office, envelope, seconds)
        return call

    def _line(self, sender: int, address: str, node: int, life: int) -> _Line:
        if (sender, address) not in self._lines:
            self._lines[sender, address] = _Line(Outbox(sender, life), node, life)
        return self._lines[sender, address]

    def say_goodbye(self, rank: int, seconds: float) -> None:
        """A worker's script has ended; whatever it has said before arrives first."""
        for sender, address in list(self._lines):
            if sender == rank:
                self.call(rank, address, Letter("leave"), writes=True, seconds=seconds)

    def lose(self, rank: int, seconds: float) -> None:
        """The machines notice that a worker is gone."""
        for office in self.offices.values():
            self._answer(office, office.inbox.lose(rank), seconds)

    # ------------------------------------------------------------------------------------------ on the way

    def _send(self, line: _Line, office: Office, envelope: Envelope, seconds: float) -> None:
        entry = [envelope, False]
        line.flying.append(entry)

        def arrived(now: float) -> None:
            entry[1] = True
            while line.flying and line.flying[0][1]:
                self._deliver(office, line.flying.popleft()[0], now)

        sizes = wire_bytes(office.address, envelope)
        self._count(envelope.sender, "letter", sizes)
        self._travel(envelope.letter, sizes, line.node, office.node, seconds, arrived)

    def _deliver(self, office: Office, envelope: Envelope, seconds: float) -> None:
        if self._troubles.blocks(seconds, office.server, envelope.sender):
            return
        office.calls.append((seconds, envelope.sender, envelope.letter.kind))
        answers = office.inbox.receive(envelope)
        self._relay(office, seconds)
        if envelope.writes and self._troubles.each:
            office.writes += 1
            if office.writes % self._troubles.snapshot_every == 0:
                office.snapshot = office.inbox.state()
                office.inbox.saved(office.snapshot)
        self._answer(office, answers, seconds)

    def _relay(self, office: Office, seconds: float) -> None:
        """Machines speak to machines as workers do, under a number of their own."""
        outgoing, office.inbox.machine.outgoing = office.inbox.machine.outgoing, []
        for address, letter in outgoing:
            line = self._line(office.number, address, office.node, office.inbox.epoch)
            envelope = line.outbox.post(letter, writes=True)
            line.waiting[True, envelope.number] = Call("relay")
            self._send(line, self.offices[address], envelope, seconds)

    def _answer(self, office: Office, answers: Sequence[Answer], seconds: float) -> None:
        for answer in answers:
            line = self._lines.get((answer.to, office.address))
            if line is not None:
                sizes = wire_bytes(office.address, answer)
                heard = partial(self._heard, line, office, answer, sizes)
                self._travel(answer.letter, sizes, office.node, line.node, seconds, heard)

    def _heard(self, line: _Line, office: Office, answer: Answer, sizes: Sizes, seconds: float) -> None:
        if self._troubles.blocks(seconds, office.server, answer.to):
            return
        self._count(answer.to, "answer", sizes)
        letter, again = line.outbox.heard(answer)
        if letter is not None:
            call = line.waiting.pop((answer.writes, answer.number))
            call.letter = letter
            self._world.clock.end(call, seconds)
        for envelope in again:
            self._send(line, office, envelope, seconds)

    def _travel(
        self,
        letter: Letter | None,
        sizes: Sizes,
        source: int,
        to: int,
        seconds: float,
        arrived: Callable[[float], None],
    ) -> None:
        """The very frames that a real letter has, by their length."""
        tensors = letter.tensors if letter is not None else ()
        flow = flows.message(sum(sizes))

        def ended(now: float) -> None:
            if letter is not None and tensors:
                self.trips.append(Trip(letter.kind, source, to, letter.nbytes, seconds, now))
            arrived(now)

        job = self._world.network.job("message", tensors[0] if tensors else None, flow, (source, to), ended)
        self._world.clock.fluid.add(job, seconds)

    def _count(self, rank: int, what: Literal["letter", "answer"], sizes: Sizes) -> None:
        """In a worker's ledger: what it sends, and what arrives."""
        ledger = self._ledgers.get(rank)
        if ledger is not None:
            total, sends = sum(sizes), what == "letter"
            ledger.record(what, total * sends, total * (not sends), sizes[1] / total)

    # ------------------------------------------------------------------------------------------ trouble

    def _revive(self, server: int) -> None:
        """It returns with what it knew at its last snapshot; what reached it while it was dead was lost on arrival."""
        for office in self.offices.values():
            if office.server == server:
                assert office.snapshot is not None
                office.inbox = Inbox(office.build(), office.inbox.epoch + 1)
                office.inbox.restore(office.snapshot)
                for key in [key for key in self._lines if key[0] == office.number]:
                    del self._lines[key]

    def _give_up(self, server: int, seconds: float) -> None:
        """It does not come back: whoever waits for it, now or later, is told."""
        self._gone.add(server)
        for (_, address), line in list(self._lines.items()):
            if self.offices[address].server == server:
                for call in line.waiting.values():
                    self._world.clock.end(call, seconds, _lost(server))
                line.waiting.clear()

    def _say_again(self, server: int, seconds: float) -> None:
        """The way is open again: everybody hears how far the machine is, and repeats what it lacks."""
        for (sender, address), line in list(self._lines.items()):
            office = self.offices[address]
            if office.server == server and (known := office.inbox.progress(sender, line.life)) is not None:
                for envelope in line.outbox.reopened(office.inbox.epoch, *known):
                    self._send(line, office, envelope, seconds)


def _lost(server: int) -> WorkerLost:
    return WorkerLost(f"server {server} is gone for good. Keep a copy elsewhere with ps(replicas=1)")

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
from laconic.worker import Actor, ActorMessage, Home


class Simulation(Protocol):
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
class Fault:
    """From one time to another a server is dead (`worker` is None), or a worker cannot reach it."""

    begin_seconds: float
    end_seconds: float
    server: int
    worker: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.begin_seconds < self.end_seconds:
            raise LaconicError(f"trouble begins before it ends: {self}")


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and when whoever waits says it again; servers save themselves every so many writes."""

    each: tuple[Fault, ...] = ()
    retry_seconds: float = 0.5
    snapshot_every: int = 16

    def blocks(self, seconds: float, server: int, worker: int) -> bool:
        return any(
            t.server == server and t.begin_seconds <= seconds < t.end_seconds and t.worker in (None, worker)
            for t in self.each
        )


@dataclass(frozen=True)
class Delivery:
    """A letter that was under way between two nodes of the network, and when."""

    kind: str
    source: int
    to: int
    nbytes: int  # of its tensors
    begin_seconds: float
    end_seconds: float


@dataclass(eq=False)
class HostedActor:
    """Where one machine lives."""

    address: str
    number: int  # under which it speaks to other machines
    node: int
    server: int
    build: Callable[[], Actor]
    inbox: Inbox
    snapshot: dict[str, Any] | None = None
    writes: int = 0
    calls: list[tuple[float, int, str]] = field(default_factory=list)  # when what arrived from whom, for whoever asks


class VirtualCall(Operation):
    """A letter that will be answered."""

    message: ActorMessage | None = None


@dataclass(eq=False)
class _Channel:
    """One worker's letters to one machine: they arrive in the order in which they left."""

    outbox: Outbox
    node: int
    life: int
    waiting: dict[tuple[bool, int], VirtualCall] = field(default_factory=dict)
    flying: deque[list[Any]] = field(default_factory=deque)  # [envelope, whether it is there]


class VirtualRpc:
    """All machines of a simulation and all lines to them."""

    def __init__(self, world: Simulation, servers: int, size: int, faults: Faults | None = None) -> None:
        self._world, self._servers, self._size = world, servers, size
        self._troubles = faults or Faults()
        self.hosted_actors: dict[str, HostedActor] = {}
        self.deliveries: list[Delivery] = []  # of tensors, for whoever asks
        self._lines: dict[tuple[int, str], _Channel] = {}
        self._lives: dict[int, int] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._gone: set[int] = set()
        for fault in self._troubles.each:
            if fault.worker is None and math.isinf(fault.end_seconds):
                noticed = fault.begin_seconds + world.heartbeat_seconds
                world.clock.at(noticed, partial(self._give_up, fault.server, noticed))
                continue
            if fault.worker is None:
                world.clock.at(fault.end_seconds, partial(self._revive, fault.server))
            later = fault.end_seconds + self._troubles.retry_seconds
            world.clock.at(later, partial(self._say_again, fault.server, later))

    def begin_life(self, rank: int, ledger: Ledger) -> None:
        """A worker is born, perhaps again: its old lines are nobody's."""
        self._ledgers[rank] = ledger
        self._lives[rank] = self._lives.get(rank, -1) + 1
        for key in [key for key in self._lines if key[0] == rank]:
            del self._lines[key]

    def host(self, address: str, home: Home, build: Callable[[], Actor], absent: Sequence[int]) -> None:
        """The first to ask builds it. Whoever is not there from the start is not waited for."""
        if address in self.hosted_actors:
            return
        server = home.number % self._servers if home.on == "server" and self._servers else home.number % self._size
        node = self._size + server if home.on == "server" and self._servers else server
        hosted = self.hosted_actors[address] = HostedActor(
            address, -1 - len(self.hosted_actors), node, server, build, Inbox(build())
        )
        for rank in absent:
            hosted.inbox.actor.lose(rank)
        if self._troubles.each:
            hosted.snapshot = hosted.inbox.state()

    def call(self, rank: int, address: str, message: ActorMessage, writes: bool, seconds: float) -> VirtualCall:
        if address not in self.hosted_actors:
            raise LaconicError(f"nobody is at the address {address!r}")
        hosted, channel = self.hosted_actors[address], self._channel(rank, address, rank, self._lives.get(rank, 0))
        envelope = channel.outbox.add(message, writes)
        call = channel.waiting[writes, envelope.number] = VirtualCall(f"{message.kind} at {address}")
        if hosted.server in self._gone:
            del channel.waiting[writes, envelope.number]
            self._world.clock.end(call, seconds, _lost(hosted.server))
        else:
            self._send(channel, hosted, envelope, seconds)
        return call

    def _channel(self, sender: int, address: str, node: int, life: int) -> _Channel:
        if (sender, address) not in self._lines:
            self._lines[sender, address] = _Channel(Outbox(sender, life), node, life)
        return self._lines[sender, address]

    def say_goodbye(self, rank: int, seconds: float) -> None:
        """A worker's script has ended; whatever it has said before arrives first."""
        for sender, address in list(self._lines):
            if sender == rank:
                self.call(rank, address, ActorMessage("leave"), writes=True, seconds=seconds)

    def lose(self, rank: int, seconds: float) -> None:
        """The machines notice that a worker is gone."""
        for hosted in self.hosted_actors.values():
            self._answer(hosted, hosted.inbox.lose(rank), seconds)

    # ------------------------------------------------------------------------------------------ on the way

    def _send(self, channel: _Channel, hosted: HostedActor, envelope: Envelope, seconds: float) -> None:
        entry = [envelope, False]
        channel.flying.append(entry)

        def arrived(now: float) -> None:
            entry[1] = True
            while channel.flying and channel.flying[0][1]:
                self._deliver(hosted, channel.flying.popleft()[0], now)

        sizes = wire_bytes(hosted.address, envelope)
        self._count(envelope.sender, "letter", sizes)
        self._travel(envelope.message, sizes, channel.node, hosted.node, seconds, arrived)

    def _deliver(self, hosted: HostedActor, envelope: Envelope, seconds: float) -> None:
        if self._troubles.blocks(seconds, hosted.server, envelope.sender):
            return
        hosted.calls.append((seconds, envelope.sender, envelope.message.kind))
        answers = hosted.inbox.receive(envelope)
        self._relay(hosted, seconds)
        if envelope.writes and self._troubles.each:
            hosted.writes += 1
            if hosted.writes % self._troubles.snapshot_every == 0:
                hosted.snapshot = hosted.inbox.state()
                hosted.inbox.saved(hosted.snapshot)
        self._answer(hosted, answers, seconds)

    def _relay(self, hosted: HostedActor, seconds: float) -> None:
        """Machines speak to machines as workers do, under a number of their own."""
        outgoing, hosted.inbox.actor.outgoing = hosted.inbox.actor.outgoing, []
        for address, message in outgoing:
            channel = self._channel(hosted.number, address, hosted.node, hosted.inbox.epoch)
            envelope = channel.outbox.add(message, writes=True)
            channel.waiting[True, envelope.number] = VirtualCall("relay")
            self._send(channel, self.hosted_actors[address], envelope, seconds)

    def _answer(self, hosted: HostedActor, answers: Sequence[Answer], seconds: float) -> None:
        for answer in answers:
            channel = self._lines.get((answer.to, hosted.address))
            if channel is not None:
                sizes = wire_bytes(hosted.address, answer)
                heard = partial(self._heard, channel, hosted, answer, sizes)
                self._travel(answer.message, sizes, hosted.node, channel.node, seconds, heard)

    def _heard(self, channel: _Channel, hosted: HostedActor, answer: Answer, sizes: Sizes, seconds: float) -> None:
        if self._troubles.blocks(seconds, hosted.server, answer.to):
            return
        self._count(answer.to, "answer", sizes)
        message, again = channel.outbox.receive(answer)
        if message is not None:
            call = channel.waiting.pop((answer.writes, answer.number))
            call.message = message
            self._world.clock.end(call, seconds)
        for envelope in again:
            self._send(channel, hosted, envelope, seconds)

    def _travel(
        self,
        message: ActorMessage | None,
        sizes: Sizes,
        source: int,
        to: int,
        seconds: float,
        arrived: Callable[[float], None],
    ) -> None:
        """The very frames that a real letter has, by their length."""
        tensors = message.tensors if message is not None else ()
        flow = flows.message(sum(sizes))

        def ended(now: float) -> None:
            if message is not None and tensors:
                self.deliveries.append(Delivery(message.kind, source, to, message.nbytes, seconds, now))
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
        for hosted in self.hosted_actors.values():
            if hosted.server == server:
                assert hosted.snapshot is not None
                hosted.inbox = Inbox(hosted.build(), hosted.inbox.epoch + 1)
                hosted.inbox.restore(hosted.snapshot)
                for key in [key for key in self._lines if key[0] == hosted.number]:
                    del self._lines[key]

    def _give_up(self, server: int, seconds: float) -> None:
        """It does not come back: whoever waits for it, now or later, is told."""
        self._gone.add(server)
        for (_, address), channel in list(self._lines.items()):
            if self.hosted_actors[address].server == server:
                for call in channel.waiting.values():
                    self._world.clock.end(call, seconds, _lost(server))
                channel.waiting.clear()

    def _say_again(self, server: int, seconds: float) -> None:
        """The way is open again: everybody hears how far the machine is, and repeats what it lacks."""
        for (sender, address), channel in list(self._lines.items()):
            hosted = self.hosted_actors[address]
            if hosted.server == server and (known := hosted.inbox.progress(sender, channel.life)) is not None:
                for envelope in channel.outbox.resume(hosted.inbox.epoch, *known):
                    self._send(channel, hosted, envelope, seconds)


def _lost(server: int) -> WorkerLost:
    return WorkerLost(f"server {server} is gone for good. Keep a copy elsewhere with ps(replicas=1)")

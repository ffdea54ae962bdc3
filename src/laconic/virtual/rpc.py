"""RPC on the virtual clock: actors live at nodes of the network and react when a message arrives.

Both ends use the same inbox and outbox as real runs do. A server may be killed and restart from its last snapshot, and
links may be cut: messages in flight are then lost, and their senders retry when the fault is over.
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
from laconic.network.network_tree import Network
from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.frames import wire_bytes
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.runtime.ledger import Ledger
from laconic.virtual.clock import Clock, Operation
from laconic.worker import Actor, ActorMessage, Home


class SimulationView(Protocol):
    """The part of a simulation that RPC uses: its clock, its network, and how long a silent server is waited for."""

    @property
    def clock(self) -> Clock: ...
    @property
    def network(self) -> Network: ...
    @property
    def heartbeat_seconds(self) -> float: ...


Sizes = tuple[int, int]
"""The bytes of a message's tensors, and all its other bytes on the wire."""


@dataclass(frozen=True)
class Fault:
    """A period in which a server is dead, or in which one worker cannot reach it.

    - `begin_seconds`, `end_seconds`: in virtual time; an infinite end is a server that never comes back.
    - `server`: the server's number.
    - `worker`: the worker whose messages are lost, in both directions; None: the server itself is dead, and restarts
      from its last snapshot.
    """

    begin_seconds: float
    end_seconds: float
    server: int
    worker: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.begin_seconds < self.end_seconds:
            raise LaconicError(f"a fault begins at 0 s or later, and before it ends: {self}")


@dataclass(frozen=True)
class Faults:
    """All faults of a simulation's servers, and how they recover.

    - `each`: a `laconic.Fault` each.
    - `retry_seconds`: how long after the end of a fault workers send again.
    - `snapshot_every`: after how many writes a server takes a snapshot.
    """

    each: tuple[Fault, ...] = ()
    retry_seconds: float = 0.5
    snapshot_every: int = 16

    def blocks(self, seconds: float, server: int, worker: int) -> bool:
        """Return whether messages between this server and this worker are lost at this time."""
        return any(
            f.server == server and f.begin_seconds <= seconds < f.end_seconds and f.worker in (None, worker)
            for f in self.each
        )


@dataclass(frozen=True)
class Delivery:
    """The transfer of one message with tensors between two nodes of the network, and its times."""

    kind: str
    source: int
    to: int
    nbytes: int  # of its tensors
    begin_seconds: float
    end_seconds: float


@dataclass(eq=False)
class HostedActor:
    """An actor at its address, with the node and server that host it."""

    address: str
    number: int  # the sender number (negative) of its own messages to other actors
    node: int
    server: int
    build: Callable[[], Actor]
    inbox: Inbox
    snapshot: dict[str, Any] | None = None
    writes: int = 0
    calls: list[tuple[float, int, str]] = field(
        default_factory=list
    )  # of every message received: (seconds, sender, kind)


class VirtualCall(Operation):
    """A call to an actor, which ends when its answer has arrived."""

    message: ActorMessage | None = None


@dataclass(eq=False)
class _Channel:
    """One sender's messages to one actor: they are delivered in the order in which they were sent."""

    outbox: Outbox
    node: int
    life: int
    waiting: dict[tuple[bool, int], VirtualCall] = field(default_factory=dict)
    in_flight: deque[list[Any]] = field(default_factory=deque)  # [envelope, whether it has arrived]


class VirtualRpc:
    """All actors of a simulation, and the channels of all senders to them."""

    def __init__(self, simulation: SimulationView, servers: int, size: int, faults: Faults | None = None) -> None:
        self._simulation, self._servers, self._size = simulation, servers, size
        self._faults = faults or Faults()
        self.hosted_actors: dict[str, HostedActor] = {}
        self.deliveries: list[Delivery] = []  # of all messages with tensors, for tests and reports
        self._channels: dict[tuple[int, str], _Channel] = {}
        self._lives: dict[int, int] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._lost_servers: set[int] = set()
        for fault in self._faults.each:
            if fault.worker is None and math.isinf(fault.end_seconds):
                noticed_seconds = fault.begin_seconds + simulation.heartbeat_seconds
                simulation.clock.at(noticed_seconds, partial(self._give_up, fault.server, noticed_seconds))
                continue
            if fault.worker is None:
                simulation.clock.at(fault.end_seconds, partial(self._restart, fault.server))
            retry_at_seconds = fault.end_seconds + self._faults.retry_seconds
            simulation.clock.at(retry_at_seconds, partial(self._retry, fault.server, retry_at_seconds))

    def begin_life(self, rank: int, ledger: Ledger) -> None:
        """Register a worker that starts, perhaps again: the channels of its earlier life are dropped."""
        self._ledgers[rank] = ledger
        self._lives[rank] = self._lives.get(rank, -1) + 1
        for key in [key for key in self._channels if key[0] == rank]:
            del self._channels[key]

    def host(self, address: str, home: Home, build: Callable[[], Actor], absent: Sequence[int]) -> None:
        """Host an actor at this address, built at the first request; it does not wait for `absent` workers."""
        if address in self.hosted_actors:
            return
        server = home.number % self._servers if home.on == "server" and self._servers else home.number % self._size
        node = self._size + server if home.on == "server" and self._servers else server
        hosted = self.hosted_actors[address] = HostedActor(
            address, -1 - len(self.hosted_actors), node, server, build, Inbox(build())
        )
        for rank in absent:
            hosted.inbox.actor.lose(rank)
        if self._faults.each:
            hosted.snapshot = hosted.inbox.state()

    def call(self, rank: int, address: str, message: ActorMessage, writes: bool, seconds: float) -> VirtualCall:
        """Send a message from a worker to an actor at this time; the call ends when its answer has arrived."""
        if address not in self.hosted_actors:
            raise LaconicError(f"no actor is hosted at the address {address!r}")
        hosted, channel = self.hosted_actors[address], self._channel(rank, address, rank, self._lives.get(rank, 0))
        envelope = channel.outbox.add(message, writes)
        call = channel.waiting[writes, envelope.number] = VirtualCall(f"{message.kind} at {address}")
        if hosted.server in self._lost_servers:
            del channel.waiting[writes, envelope.number]
            self._simulation.clock.end(call, seconds, _lost(hosted.server))
        else:
            self._send(channel, hosted, envelope, seconds)
        return call

    def _channel(self, sender: int, address: str, node: int, life: int) -> _Channel:
        if (sender, address) not in self._channels:
            self._channels[sender, address] = _Channel(Outbox(sender, life), node, life)
        return self._channels[sender, address]

    def leave(self, rank: int, seconds: float) -> None:
        """Tell all actors a worker has sent to that its script has ended; its earlier messages arrive first."""
        for sender, address in list(self._channels):
            if sender == rank:
                self.call(rank, address, ActorMessage("leave"), writes=True, seconds=seconds)

    def lose(self, rank: int, seconds: float) -> None:
        """Tell all actors that a worker is gone."""
        for hosted in self.hosted_actors.values():
            answers = hosted.inbox.lose(rank)
            self._relay(hosted, seconds)
            self._answer(hosted, answers, seconds)

    # ------------------------------------------------------------------------------------------ in flight

    def _send(self, channel: _Channel, hosted: HostedActor, envelope: Envelope, seconds: float) -> None:
        entry = [envelope, False]
        channel.in_flight.append(entry)

        def arrived(now: float) -> None:
            entry[1] = True
            while channel.in_flight and channel.in_flight[0][1]:
                self._deliver(hosted, channel.in_flight.popleft()[0], now)

        sizes = wire_bytes(hosted.address, envelope)
        self._count(envelope.sender, "letter", sizes)
        self._transfer(envelope.message, sizes, channel.node, hosted.node, seconds, arrived)

    def _deliver(self, hosted: HostedActor, envelope: Envelope, seconds: float) -> None:
        if self._faults.blocks(seconds, hosted.server, envelope.sender):
            return
        hosted.calls.append((seconds, envelope.sender, envelope.message.kind))
        answers = hosted.inbox.receive(envelope)
        self._relay(hosted, seconds)
        if envelope.writes and self._faults.each:
            hosted.writes += 1
            if hosted.writes % self._faults.snapshot_every == 0:
                hosted.snapshot = hosted.inbox.state()
                hosted.inbox.saved(hosted.snapshot)
        self._answer(hosted, answers, seconds)

    def _relay(self, hosted: HostedActor, seconds: float) -> None:
        """Send what an actor wants other actors to receive, under the actor's own sender number."""
        outgoing, hosted.inbox.actor.outgoing = hosted.inbox.actor.outgoing, []
        for address, message in outgoing:
            channel = self._channel(hosted.number, address, hosted.node, hosted.inbox.epoch)
            envelope = channel.outbox.add(message, writes=True)
            channel.waiting[True, envelope.number] = VirtualCall("relay")
            self._send(channel, self.hosted_actors[address], envelope, seconds)

    def _answer(self, hosted: HostedActor, answers: Sequence[Answer], seconds: float) -> None:
        for answer in answers:
            channel = self._channels.get((answer.to, hosted.address))
            if channel is not None:
                sizes = wire_bytes(hosted.address, answer)
                arrived = partial(self._answer_arrived, channel, hosted, answer, sizes)
                self._transfer(answer.message, sizes, hosted.node, channel.node, seconds, arrived)

    def _answer_arrived(
        self, channel: _Channel, hosted: HostedActor, answer: Answer, sizes: Sizes, seconds: float
    ) -> None:
        if self._faults.blocks(seconds, hosted.server, answer.to):
            return
        self._count(answer.to, "answer", sizes)
        message, to_resend = channel.outbox.receive(answer)
        if message is not None:
            call = channel.waiting.pop((answer.writes, answer.number))
            call.message = message
            self._simulation.clock.end(call, seconds)
        for envelope in to_resend:
            self._send(channel, hosted, envelope, seconds)

    def _transfer(
        self,
        message: ActorMessage | None,
        sizes: Sizes,
        source: int,
        to: int,
        seconds: float,
        arrived: Callable[[float], None],
    ) -> None:
        """Send as many bytes over the network as the frames of a real message have, then call `arrived`."""
        tensors = message.tensors if message is not None else ()
        flow = flows.message(sum(sizes))

        def ended(now: float) -> None:
            if message is not None and tensors:
                self.deliveries.append(Delivery(message.kind, source, to, message.nbytes, seconds, now))
            arrived(now)

        job = self._simulation.network.job("message", tensors[0] if tensors else None, flow, (source, to), ended)
        self._simulation.clock.fluid.add(job, seconds)

    def _count(self, rank: int, what: Literal["letter", "answer"], sizes: Sizes) -> None:
        """Record a sent message (`letter`) or a received answer in the worker's ledger."""
        ledger = self._ledgers.get(rank)
        if ledger is not None:
            total, sends = sum(sizes), what == "letter"
            ledger.record(what, total * sends, total * (not sends), sizes[1] / total)

    # ------------------------------------------------------------------------------------------ faults

    def _restart(self, server: int) -> None:
        """Restart a server from its last snapshot; what reached it while it was dead has been dropped on arrival."""
        for hosted in self.hosted_actors.values():
            if hosted.server == server:
                assert hosted.snapshot is not None
                hosted.inbox = Inbox(hosted.build(), hosted.inbox.epoch + 1)
                hosted.inbox.restore(hosted.snapshot)
                for key in [key for key in self._channels if key[0] == hosted.number]:
                    del self._channels[key]

    def _give_up(self, server: int, seconds: float) -> None:
        """Fail all pending and later calls to a server that never returns."""
        self._lost_servers.add(server)
        for (_, address), channel in list(self._channels.items()):
            if self.hosted_actors[address].server == server:
                for call in channel.waiting.values():
                    self._simulation.clock.end(call, seconds, _lost(server))
                channel.waiting.clear()

    def _retry(self, server: int, seconds: float) -> None:
        """Resend to a server that is reachable again what it has not received from each sender."""
        for (sender, address), channel in list(self._channels.items()):
            hosted = self.hosted_actors[address]
            if hosted.server == server and (progress := hosted.inbox.progress(sender, channel.life)) is not None:
                for envelope in channel.outbox.resume(hosted.inbox.epoch, *progress):
                    self._send(channel, hosted, envelope, seconds)


def _lost(server: int) -> WorkerLost:
    return WorkerLost(f"server {server} is gone for good. Keep a copy elsewhere with ps(replicas=1)")

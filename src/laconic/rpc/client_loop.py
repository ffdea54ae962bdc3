"""The calling thread: carries a process's letters to the servers, and says again what may be lost."""

from __future__ import annotations

import secrets
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

import zmq

from laconic.errors import LaconicError, WorkerLost
from laconic.rpc import control
from laconic.rpc.authentication import MessageSeal
from laconic.rpc.channel import Channel, Patience, PendingCall
from laconic.rpc.connection import Connection
from laconic.rpc.control import Beat, Control, Goodbye, Hello, Refused, Save, Saved, Unknown, Welcome
from laconic.rpc.directory import Directory
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import Buffer, Malformed, bytes_in, wire_bytes
from laconic.rpc.keys import Keys
from laconic.rpc.outbox import Outbox
from laconic.rpc.sockets import Wake
from laconic.worker import ActorMessage, Ledger

_GOODBYE_SECONDS = 2.0


class ClientLoop:
    """All letters of one process, to whatever servers there are."""

    def __init__(
        self,
        context: zmq.Context[Any],
        keys: Keys,
        directory: Directory,
        rank: int,
        life: int,
        ledger: Ledger,
        patience: Patience,
    ) -> None:
        self._context, self._keys, self._directory = context, keys, directory
        self._rank, self._life, self._ledger, self._patience = rank, life, ledger, patience
        self._token = secrets.token_bytes(16)
        self._lock = threading.Condition()
        self._channels: dict[str, Channel] = {}
        self._connections: dict[str, Connection] = {}
        self._seals: dict[bytes, MessageSeal] = {}
        self._counted: deque[tuple[str, float, float, float]] = deque()
        self._wake = Wake()
        self._leaves = self._ends = False
        self._tick_seconds = float("-inf")  # the last one; anybody who has something to do at once puts it back
        self._ticked_seconds = time.monotonic()
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="laconic-calls", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ for others

    def call(self, address: str, message: ActorMessage, writes: bool, waits: bool = True) -> PendingCall:
        """Send a letter, whose tensors must not change any more. Where too much would have to be kept it waits, unless
        the caller may not."""
        wire_bytes(address, Envelope(self._rank, self._life, 1, writes, 0, 0, message))  # what cannot travel is refused
        call = PendingCall(message.kind, self._settle)
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(address, Outbox(self._rank, self._life), time.monotonic())
                self._tick_seconds = float("-inf")
            channel.largest_bytes = max(channel.largest_bytes, message.nbytes)
            while writes and waits and channel.would_overflow(message):
                self._lock.wait()
            if channel.failed is not None:
                raise channel.failed
            envelope = channel.outbox.post(message, writes)
            channel.client_loop[writes, envelope.number] = call
            self._queue(channel, [envelope])
        self._wake.ring()
        self._settle()
        return call

    @property
    def is_quiet(self) -> bool:
        """Whether every letter has its answer."""
        with self._lock:
            return not any(channel.client_loop for channel in self._channels.values())

    def leave(self) -> None:
        """Wait until all that was written is durable, then say goodbye."""
        with self._lock:
            self._leaves = True
            self._tick_seconds = float("-inf")
            self._wake.ring()
            self._lock.wait_for(lambda: all(r.outbox.is_safe or r.failed for r in self._channels.values()))
            self._lock.wait_for(
                lambda: all(connection.left for connection in self._connections.values()), _GOODBYE_SECONDS
            )
        self._settle()

    def close(self) -> None:
        self._ends = True
        self._wake.ring()
        self._thread.join()
        for connection in self._connections.values():
            connection.close()
        with self._lock:
            for channel in self._channels.values():
                channel.fail(LaconicError("this process has closed its post, so that nothing is sent any more."))
            self._lock.notify_all()
        self._wake.close()

    def _settle(self) -> None:
        """Into the ledger, from the threads that call: it belongs to them."""
        while self._counted:
            try:
                self._ledger.record(*self._counted.popleft())
            except IndexError:  # another was quicker
                return

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._ends:
                self._wait()
                for connection in list(self._connections.values()):
                    for frame in connection.said():
                        self._control(connection, frame)
                    for frames in connection.answered():
                        self._answer(connection, frames)
                    self._send(connection)
                now = time.monotonic()
                if now - self._tick_seconds >= self._patience.interval_seconds:
                    self._tick_seconds = now
                    self._tick(now)
        except Exception as error:  # whoever waits must hear of it
            traceback.print_exc(file=sys.stderr)
            with self._lock:
                for channel in self._channels.values():
                    channel.fail(error)
                self._lock.notify_all()

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for connection in self._connections.values():
            for source, events in connection.sources():
                poller.register(source, events)
        rest = self._patience.interval_seconds - (time.monotonic() - self._tick_seconds)
        poller.poll(round(max(0.0, rest) * 1000))
        self._wake.hear()

    def _send(self, connection: Connection) -> None:
        while (sent := connection.send_next()) is not None:
            address, kind, (payload, other) = sent
            self._count(kind, (payload, 0), (other, 0))
            with self._lock:
                self._ask_to_save(self._channels[address])

    def _tick(self, now: float) -> None:
        """What happens by the clock: look-ups, hellos, heartbeats, repetitions, and giving up. Time in which this
        process slept is not held against anybody."""
        blind = max(0.0, now - self._ticked_seconds - 3 * self._patience.interval_seconds)
        self._ticked_seconds = now
        with self._lock:
            for connection in self._connections.values():
                connection.heard_seconds += blind
            for channel in self._channels.values():
                if channel.failed is None:
                    self._look(channel, now)
                    self._ask_to_save(channel)
                    if channel.is_overdue(now):
                        self._queue(channel, channel.outbox.overdue())
            for connection in list(self._connections.values()):
                self._beat(connection, now)
            self._lock.notify_all()

    def _look(self, channel: Channel, now: float) -> None:
        """Find the machine, at first and when nothing is heard of it."""
        connection = channel.connection
        silence = now - (channel.since_seconds if connection is None else connection.heard_seconds)
        if connection is not None and silence <= 3 * self._patience.interval_seconds:
            return
        endpoint = self._directory.find(channel.address)
        if endpoint is not None and (connection is None or endpoint != connection.endpoint):
            if endpoint not in self._connections:
                self._connections[endpoint] = Connection(self._context, self._keys, self._seals, endpoint, now)
            channel.connection = self._connections[endpoint]
            if connection is not None and not any(other.connection is connection for other in self._channels.values()):
                connection.close()
                del self._connections[connection.endpoint]
        elif connection is None and silence > self._patience.start_seconds:
            self._fail(channel, f"nobody serves {channel.address!r} after {silence:.0f} s: its server has not started.")
        elif connection is not None and silence > self._patience.unreachable_seconds:
            self._fail(
                channel, f"the server of {channel.address!r} at {connection.endpoint} was silent for {silence:.0f} s."
            )

    def _ask_to_save(self, channel: Channel) -> None:
        wants = channel.is_heavy or (self._leaves and not channel.outbox.is_safe)
        if wants and channel.is_ready and not channel.asked:
            assert channel.connection is not None and channel.connection.seal is not None
            channel.connection.say(Save(channel.connection.seal.session, channel.address))
            channel.asked = True

    def _beat(self, connection: Connection, now: float) -> None:
        wanted = [r.address for r in self._channels.values() if r.connection is connection and r.failed is None]
        if connection.seal is None or any(address not in connection.ready for address in wanted):
            connection.say(Hello(control.VERSION, self._rank, self._life, self._token, wanted))
        elif self._leaves and all(r.outbox.is_safe for r in self._channels.values() if r.connection is connection):
            connection.say(Goodbye(connection.seal.session))
        else:
            connection.say(Beat(connection.seal.session))

    def _control(self, connection: Connection, frame: bytes) -> None:
        connection.heard_seconds = time.monotonic()
        try:
            said = control.decode(frame)
            with self._lock:
                self._take(connection, said)
                self._lock.notify_all()
        except Malformed:
            self.refused += 1

    def _take(self, connection: Connection, said: Control) -> None:
        if isinstance(said, Welcome):
            connection.welcomed(said)
            for address, mailbox in said.mailboxes.items():
                channel = self._channels.get(address)
                if (
                    channel is not None
                    and channel.connection is connection
                    and not channel.is_ready
                    and channel.failed is None
                ):
                    self._reopen(channel, connection, mailbox)
        elif isinstance(said, Unknown) and connection.seal is not None and said.session == connection.seal.session:
            connection.forget_session()
            self._tick_seconds = float("-inf")
        elif isinstance(said, Saved) and said.address in self._channels:
            channel = self._channels[said.address]
            channel.asked = False
            channel.outbox.saved(said.durable)
            self._ask_to_save(channel)
            if self._leaves:
                self._tick_seconds = float("-inf")
        elif isinstance(said, Goodbye):
            connection.left = True
        elif isinstance(said, Refused):
            for channel in [r for r in self._channels.values() if r.connection is connection]:
                self._fail(channel, said.why)

    def _reopen(self, channel: Channel, connection: Connection, mailbox: tuple[int, int, int]) -> None:
        connection.ready.add(channel.address)
        channel.asked = False
        channel.heard(time.monotonic())
        try:
            self._queue(channel, channel.outbox.reopened(*mailbox))
        except WorkerLost as error:
            self._fail(channel, str(error))

    def _answer(self, connection: Connection, frames: list[Buffer]) -> None:
        connection.heard_seconds = time.monotonic()
        try:
            address, answer = connection.read(frames)
        except Malformed:
            self.refused += 1
            return
        with self._lock:
            channel = self._channels.get(address)
            if channel is None or channel.failed is not None:
                return
            channel.heard(connection.heard_seconds)
            key = (answer.writes, answer.number)
            payload, other = bytes_in([len(frame) for frame in frames[1:]])
            kind = channel.client_loop[key].kind if key in channel.client_loop else "again"
            self._count(kind, (0, payload), (0, other))
            try:
                message, again = channel.outbox.heard(answer)
            except WorkerLost as error:
                self._fail(channel, str(error))
                return
            self._queue(channel, again)
            if message is not None:
                channel.client_loop.pop(key).end(message)
            self._lock.notify_all()

    # ------------------------------------------------------------------------------------------ inside

    def _queue(self, channel: Channel, envelopes: list[Envelope]) -> None:
        if channel.is_ready and channel.connection is not None:
            channel.connection.unsent.extend((channel.address, envelope) for envelope in envelopes)

    def _fail(self, channel: Channel, why: str) -> None:
        advice = "" if why.endswith(".") and "log" in why else " Look at that process's log."
        channel.fail(WorkerLost(f"{why}{advice}"))
        self._lock.notify_all()

    def _count(self, kind: str, payload: tuple[int, int], other: tuple[int, int]) -> None:
        for (sent, received), share in ((payload, 0.0), (other, 1.0)):
            if sent or received:
                self._counted.append((kind, sent, received, share))

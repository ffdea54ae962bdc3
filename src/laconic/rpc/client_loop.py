"""The client side of a process: a thread that sends its messages to the servers, and again those that may be lost."""

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
from laconic.rpc.authentication import MessageAuthenticator
from laconic.rpc.channel import CallTimeouts, Channel, PendingCall
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
    """Sends all messages of one process to all servers, from one thread."""

    def __init__(
        self,
        context: zmq.Context[Any],
        keys: Keys,
        directory: Directory,
        rank: int,
        life: int,
        ledger: Ledger,
        timeouts: CallTimeouts,
    ) -> None:
        self._context, self._keys, self._directory = context, keys, directory
        self._rank, self._life, self._ledger, self._timeouts = rank, life, ledger, timeouts
        self._token = secrets.token_bytes(16)
        self._lock = threading.Condition()
        self._channels: dict[str, Channel] = {}
        self._connections: dict[str, Connection] = {}
        self._authenticators: dict[bytes, MessageAuthenticator] = {}
        self._counted: deque[tuple[str, float, float, float]] = deque()
        self._wake = Wake()
        self._is_saving = self._is_leaving = self._is_closing = False
        self._tick_seconds = float("-inf")  # the last one; -inf makes the next one happen at once
        self._ticked_seconds = time.monotonic()
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="laconic-rpc-client", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ for others

    def call(self, address: str, message: ActorMessage, writes: bool, waits: bool = True) -> PendingCall:
        """Send a message, whose tensors must not change any more.

        Where too many bytes would have to be kept for the actor, it waits for a snapshot, unless `waits` is false.
        """
        wire_bytes(address, Envelope(self._rank, self._life, 1, writes, 0, 0, message))  # raises if it cannot be sent
        call = PendingCall(message.kind, self._flush_ledger)
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
            envelope = channel.outbox.add(message, writes)
            channel.calls[writes, envelope.number] = call
            self._queue(channel, [envelope])
        self._wake.notify()
        self._flush_ledger()
        return call

    @property
    def is_idle(self) -> bool:
        """Whether every message has its answer."""
        with self._lock:
            return not any(channel.calls for channel in self._channels.values())

    def make_durable(self) -> None:
        """Wait until the servers hold on disk what this process has written so far."""
        with self._lock:
            self._is_saving = True
            self._tick_seconds = float("-inf")
            self._wake.notify()
            self._lock.wait_for(lambda: all(r.outbox.is_safe or r.failed for r in self._channels.values()))
            self._is_saving = False
        self._flush_ledger()

    def leave(self) -> None:
        """Wait until all writes are durable, then tell the servers that this process leaves."""
        with self._lock:
            self._is_leaving = True
            self._tick_seconds = float("-inf")
            self._wake.notify()
            self._lock.wait_for(lambda: all(r.outbox.is_safe or r.failed for r in self._channels.values()))
            self._lock.wait_for(
                lambda: all(connection.left for connection in self._connections.values()), _GOODBYE_SECONDS
            )
        self._flush_ledger()

    def close(self) -> None:
        """Stop the thread at once; pending calls fail."""
        self._is_closing = True
        self._wake.notify()
        self._thread.join()
        for connection in self._connections.values():
            connection.close()
        with self._lock:
            for channel in self._channels.values():
                channel.fail(
                    LaconicError("this process has closed its rpc endpoint, so that nothing is sent any more.")
                )
            self._lock.notify_all()
        self._wake.close()

    def _flush_ledger(self) -> None:
        """Record the counted bytes in the ledger, from the calling threads, to which it belongs."""
        while self._counted:
            try:
                self._ledger.record(*self._counted.popleft())
            except IndexError:  # another thread took the last one
                return

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wait()
                for connection in list(self._connections.values()):
                    for frame in connection.receive_control():
                        self._receive_control(connection, frame)
                    for frames in connection.receive_answers():
                        self._receive_answer(connection, frames)
                    self._send(connection)
                now = time.monotonic()
                if now - self._tick_seconds >= self._timeouts.interval_seconds:
                    self._tick_seconds = now
                    self._tick(now)
        except Exception as error:  # every waiting call must fail with it
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
        remaining = self._timeouts.interval_seconds - (time.monotonic() - self._tick_seconds)
        poller.poll(round(max(0.0, remaining) * 1000))
        self._wake.drain()

    def _send(self, connection: Connection) -> None:
        while (sent := connection.send_next()) is not None:
            address, kind, (payload, other) = sent
            self._count(kind, (payload, 0), (other, 0))
            with self._lock:
                self._ask_to_save(self._channels[address])

    def _tick(self, now: float) -> None:
        """Do what is due by the clock: look-ups, hellos, heartbeats, retries, and giving up.

        Time in which this process itself was suspended does not count as a server's silence.
        """
        unobserved = max(0.0, now - self._ticked_seconds - 3 * self._timeouts.interval_seconds)
        self._ticked_seconds = now
        with self._lock:
            for connection in self._connections.values():
                connection.last_received_seconds += unobserved
            for channel in self._channels.values():
                if channel.failed is None:
                    self._find_server(channel, now)
                    self._ask_to_save(channel)
                    if channel.is_overdue(now):
                        self._queue(channel, channel.outbox.overdue())
            for connection in list(self._connections.values()):
                self._send_heartbeat(connection, now)
            self._lock.notify_all()

    def _find_server(self, channel: Channel, now: float) -> None:
        """Look up the actor's server, at first and when nothing arrives from it."""
        connection = channel.connection
        silence = now - (channel.since_seconds if connection is None else connection.last_received_seconds)
        if connection is not None and silence <= 3 * self._timeouts.interval_seconds:
            return
        endpoint = self._directory.find(channel.address)
        if endpoint is not None and (connection is None or endpoint != connection.endpoint):
            if endpoint not in self._connections:
                self._connections[endpoint] = Connection(self._context, self._keys, self._authenticators, endpoint, now)
            channel.connection = self._connections[endpoint]
            if connection is not None and not any(other.connection is connection for other in self._channels.values()):
                connection.close()
                del self._connections[connection.endpoint]
        elif connection is None and silence > self._timeouts.start_seconds:
            self._fail(channel, f"nobody serves {channel.address!r} after {silence:.0f} s: its server has not started.")
        elif connection is not None and silence > self._timeouts.unreachable_seconds:
            self._fail(
                channel, f"the server of {channel.address!r} at {connection.endpoint} was silent for {silence:.0f} s."
            )

    def _ask_to_save(self, channel: Channel) -> None:
        wants = channel.is_nearly_full or ((self._is_leaving or self._is_saving) and not channel.outbox.is_safe)
        if wants and channel.is_ready and not channel.save_requested:
            assert channel.connection is not None and channel.connection.authenticator is not None
            channel.connection.send_control(Save(channel.connection.authenticator.session, channel.address))
            channel.save_requested = True

    def _send_heartbeat(self, connection: Connection, now: float) -> None:
        wanted = [r.address for r in self._channels.values() if r.connection is connection and r.failed is None]
        if connection.authenticator is None or any(address not in connection.ready for address in wanted):
            connection.send_control(Hello(control.VERSION, self._rank, self._life, self._token, wanted))
        elif self._is_leaving and all(r.outbox.is_safe for r in self._channels.values() if r.connection is connection):
            connection.send_control(Goodbye(connection.authenticator.session))
        else:
            connection.send_control(Beat(connection.authenticator.session))

    def _receive_control(self, connection: Connection, frame: bytes) -> None:
        connection.last_received_seconds = time.monotonic()
        try:
            message = control.decode(frame)
            with self._lock:
                self._handle_control(connection, message)
                self._lock.notify_all()
        except Malformed:
            self.refused += 1

    def _handle_control(self, connection: Connection, message: Control) -> None:
        if isinstance(message, Welcome):
            connection.open_session(message)
            for address, mailbox in message.mailboxes.items():
                channel = self._channels.get(address)
                if (
                    channel is not None
                    and channel.connection is connection
                    and not channel.is_ready
                    and channel.failed is None
                ):
                    self._reopen(channel, connection, mailbox)
        elif (
            isinstance(message, Unknown)
            and connection.authenticator is not None
            and message.session == connection.authenticator.session
        ):
            connection.forget_session()
            self._tick_seconds = float("-inf")
        elif isinstance(message, Saved) and message.address in self._channels:
            channel = self._channels[message.address]
            channel.save_requested = False
            channel.outbox.saved(message.durable)
            self._ask_to_save(channel)
            if self._is_leaving:
                self._tick_seconds = float("-inf")
        elif isinstance(message, Goodbye):
            connection.left = True
        elif isinstance(message, Refused):
            for channel in [r for r in self._channels.values() if r.connection is connection]:
                self._fail(channel, message.why)

    def _reopen(self, channel: Channel, connection: Connection, mailbox: tuple[int, int, int]) -> None:
        connection.ready.add(channel.address)
        channel.save_requested = False
        channel.note_answer(time.monotonic())
        try:
            self._queue(channel, channel.outbox.resume(*mailbox))
        except WorkerLost as error:
            self._fail(channel, str(error))

    def _receive_answer(self, connection: Connection, frames: list[Buffer]) -> None:
        connection.last_received_seconds = time.monotonic()
        try:
            address, answer = connection.decode(frames)
        except Malformed:
            self.refused += 1
            return
        with self._lock:
            channel = self._channels.get(address)
            if channel is None or channel.failed is not None:
                return
            channel.note_answer(connection.last_received_seconds)
            key = (answer.writes, answer.number)
            payload, other = bytes_in([len(frame) for frame in frames[1:]])
            kind = channel.calls[key].kind if key in channel.calls else "again"
            self._count(kind, (0, payload), (0, other))
            try:
                message, resend = channel.outbox.receive(answer)
            except WorkerLost as error:
                self._fail(channel, str(error))
                return
            self._queue(channel, resend)
            if message is not None:
                channel.calls.pop(key).end(message)
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

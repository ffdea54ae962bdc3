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
from laconic.rpc.authentication import Seal
from laconic.rpc.channel import Call, Patience, Route
from laconic.rpc.connection import Line
from laconic.rpc.control import Beat, Control, Goodbye, Hello, Refused, Save, Saved, Unknown, Welcome
from laconic.rpc.directory import Directory
from laconic.rpc.envelope import Envelope
from laconic.rpc.frames import Buffer, Malformed, bytes_in, wire_bytes
from laconic.rpc.keys import Keys
from laconic.rpc.outbox import Outbox
from laconic.rpc.sockets import Wake
from laconic.worker import Ledger, Letter

_GOODBYE_SECONDS = 2.0


class Calls:
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
        self._routes: dict[str, Route] = {}
        self._lines: dict[str, Line] = {}
        self._seals: dict[bytes, Seal] = {}
        self._counted: deque[tuple[str, float, float, float]] = deque()
        self._wake = Wake()
        self._leaves = self._ends = False
        self._tick_seconds = float("-inf")  # the last one; anybody who has something to do at once puts it back
        self._ticked_seconds = time.monotonic()
        self.refused = 0
        self._thread = threading.Thread(target=self._run, name="laconic-calls", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ for others

    def call(self, address: str, letter: Letter, writes: bool, waits: bool = True) -> Call:
        """Send a letter, whose tensors must not change any more. Where too much would have to be kept it waits, unless
        the caller may not."""
        wire_bytes(address, Envelope(self._rank, self._life, 1, writes, 0, 0, letter))  # what cannot travel is refused
        call = Call(letter.kind, self._settle)
        with self._lock:
            route = self._routes.get(address)
            if route is None:
                route = self._routes[address] = Route(address, Outbox(self._rank, self._life), time.monotonic())
                self._tick_seconds = float("-inf")
            route.largest_bytes = max(route.largest_bytes, letter.nbytes)
            while writes and waits and route.would_overflow(letter):
                self._lock.wait()
            if route.failed is not None:
                raise route.failed
            envelope = route.outbox.post(letter, writes)
            route.calls[writes, envelope.number] = call
            self._queue(route, [envelope])
        self._wake.ring()
        self._settle()
        return call

    @property
    def is_quiet(self) -> bool:
        """Whether every letter has its answer."""
        with self._lock:
            return not any(route.calls for route in self._routes.values())

    def leave(self) -> None:
        """Wait until all that was written is durable, then say goodbye."""
        with self._lock:
            self._leaves = True
            self._tick_seconds = float("-inf")
            self._wake.ring()
            self._lock.wait_for(lambda: all(r.outbox.is_safe or r.failed for r in self._routes.values()))
            self._lock.wait_for(lambda: all(line.left for line in self._lines.values()), _GOODBYE_SECONDS)
        self._settle()

    def close(self) -> None:
        self._ends = True
        self._wake.ring()
        self._thread.join()
        for line in self._lines.values():
            line.close()
        with self._lock:
            for route in self._routes.values():
                route.fail(LaconicError("this process has closed its post, so that nothing is sent any more."))
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
                for line in list(self._lines.values()):
                    for frame in line.said():
                        self._control(line, frame)
                    for frames in line.answered():
                        self._answer(line, frames)
                    self._send(line)
                now = time.monotonic()
                if now - self._tick_seconds >= self._patience.interval_seconds:
                    self._tick_seconds = now
                    self._tick(now)
        except Exception as error:  # whoever waits must hear of it
            traceback.print_exc(file=sys.stderr)
            with self._lock:
                for route in self._routes.values():
                    route.fail(error)
                self._lock.notify_all()

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fileno(), zmq.POLLIN)
        for line in self._lines.values():
            for source, events in line.sources():
                poller.register(source, events)
        rest = self._patience.interval_seconds - (time.monotonic() - self._tick_seconds)
        poller.poll(round(max(0.0, rest) * 1000))
        self._wake.hear()

    def _send(self, line: Line) -> None:
        while (sent := line.send_next()) is not None:
            address, kind, (payload, other) = sent
            self._count(kind, (payload, 0), (other, 0))
            with self._lock:
                self._ask_to_save(self._routes[address])

    def _tick(self, now: float) -> None:
        """What happens by the clock: look-ups, hellos, heartbeats, repetitions, and giving up. Time in which this
        process slept is not held against anybody."""
        blind = max(0.0, now - self._ticked_seconds - 3 * self._patience.interval_seconds)
        self._ticked_seconds = now
        with self._lock:
            for line in self._lines.values():
                line.heard_seconds += blind
            for route in self._routes.values():
                if route.failed is None:
                    self._look(route, now)
                    self._ask_to_save(route)
                    if route.is_overdue(now):
                        self._queue(route, route.outbox.overdue())
            for line in list(self._lines.values()):
                self._beat(line, now)
            self._lock.notify_all()

    def _look(self, route: Route, now: float) -> None:
        """Find the machine, at first and when nothing is heard of it."""
        line = route.line
        silence = now - (route.since_seconds if line is None else line.heard_seconds)
        if line is not None and silence <= 3 * self._patience.interval_seconds:
            return
        endpoint = self._directory.find(route.address)
        if endpoint is not None and (line is None or endpoint != line.endpoint):
            if endpoint not in self._lines:
                self._lines[endpoint] = Line(self._context, self._keys, self._seals, endpoint, now)
            route.line = self._lines[endpoint]
            if line is not None and not any(other.line is line for other in self._routes.values()):
                line.close()
                del self._lines[line.endpoint]
        elif line is None and silence > self._patience.start_seconds:
            self._fail(route, f"nobody serves {route.address!r} after {silence:.0f} s: its server has not started.")
        elif line is not None and silence > self._patience.unreachable_seconds:
            self._fail(route, f"the server of {route.address!r} at {line.endpoint} was silent for {silence:.0f} s.")

    def _ask_to_save(self, route: Route) -> None:
        wants = route.is_heavy or (self._leaves and not route.outbox.is_safe)
        if wants and route.is_ready and not route.asked:
            assert route.line is not None and route.line.seal is not None
            route.line.say(Save(route.line.seal.session, route.address))
            route.asked = True

    def _beat(self, line: Line, now: float) -> None:
        wanted = [r.address for r in self._routes.values() if r.line is line and r.failed is None]
        if line.seal is None or any(address not in line.ready for address in wanted):
            line.say(Hello(control.VERSION, self._rank, self._life, self._token, wanted))
        elif self._leaves and all(r.outbox.is_safe for r in self._routes.values() if r.line is line):
            line.say(Goodbye(line.seal.session))
        else:
            line.say(Beat(line.seal.session))

    def _control(self, line: Line, frame: bytes) -> None:
        line.heard_seconds = time.monotonic()
        try:
            said = control.decode(frame)
            with self._lock:
                self._take(line, said)
                self._lock.notify_all()
        except Malformed:
            self.refused += 1

    def _take(self, line: Line, said: Control) -> None:
        if isinstance(said, Welcome):
            line.welcomed(said)
            for address, box in said.boxes.items():
                route = self._routes.get(address)
                if route is not None and route.line is line and not route.is_ready and route.failed is None:
                    self._reopen(route, line, box)
        elif isinstance(said, Unknown) and line.seal is not None and said.session == line.seal.session:
            line.forget_session()
            self._tick_seconds = float("-inf")
        elif isinstance(said, Saved) and said.address in self._routes:
            route = self._routes[said.address]
            route.asked = False
            route.outbox.saved(said.durable)
            self._ask_to_save(route)
            if self._leaves:
                self._tick_seconds = float("-inf")
        elif isinstance(said, Goodbye):
            line.left = True
        elif isinstance(said, Refused):
            for route in [r for r in self._routes.values() if r.line is line]:
                self._fail(route, said.why)

    def _reopen(self, route: Route, line: Line, box: tuple[int, int, int]) -> None:
        line.ready.add(route.address)
        route.asked = False
        route.heard(time.monotonic())
        try:
            self._queue(route, route.outbox.reopened(*box))
        except WorkerLost as error:
            self._fail(route, str(error))

    def _answer(self, line: Line, frames: list[Buffer]) -> None:
        line.heard_seconds = time.monotonic()
        try:
            address, answer = line.read(frames)
        except Malformed:
            self.refused += 1
            return
        with self._lock:
            route = self._routes.get(address)
            if route is None or route.failed is not None:
                return
            route.heard(line.heard_seconds)
            key = (answer.writes, answer.number)
            payload, other = bytes_in([len(frame) for frame in frames[1:]])
            kind = route.calls[key].kind if key in route.calls else "again"
            self._count(kind, (0, payload), (0, other))
            try:
                letter, again = route.outbox.heard(answer)
            except WorkerLost as error:
                self._fail(route, str(error))
                return
            self._queue(route, again)
            if letter is not None:
                route.calls.pop(key).end(letter)
            self._lock.notify_all()

    # ------------------------------------------------------------------------------------------ inside

    def _queue(self, route: Route, envelopes: list[Envelope]) -> None:
        if route.is_ready and route.line is not None:
            route.line.unsent.extend((route.address, envelope) for envelope in envelopes)

    def _fail(self, route: Route, why: str) -> None:
        advice = "" if why.endswith(".") and "log" in why else " Look at that process's log."
        route.fail(WorkerLost(f"{why}{advice}"))
        self._lock.notify_all()

    def _count(self, kind: str, payload: tuple[int, int], other: tuple[int, int]) -> None:
        for (sent, received), share in ((payload, 0.0), (other, 1.0)):
            if sent or received:
                self._counted.append((kind, sent, received, share))

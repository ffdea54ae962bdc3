"""Inboxes and outboxes without sockets: workers, one actor, and a network that loses, doubles and reorders."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.worker import ActorMessage


class Tagged:
    """An actor that remembers every write by its writer's name and number, and checks that each is the next one.

    A read with `total` waits until that many writes were made in all, or until somebody was lost.
    """

    def __init__(self) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self.counts: dict[str, int] = {}  # by worker and life
        self.total = 0
        self.losses = 0

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        name, number = str(message.fields["name"]), message.number("number")
        assert number == self.counts.get(name, 0) + 1, f"{name} wrote {number} after {self.counts.get(name, 0)}"
        self.counts[name] = number
        self.total += 1
        return ActorMessage("receipt", {"name": name, "number": number})

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if self.total < message.number("total") and not self.losses:
            return None
        return ActorMessage("values", {"mine": self.counts.get(str(message.fields["name"]), 0)})

    def lose(self, sender: int) -> None:
        self.losses += 1

    def state(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "total": self.total, "losses": self.losses}

    def restore(self, state: dict[str, Any]) -> None:
        self.counts, self.total, self.losses = dict(state["counts"]), state["total"], state["losses"]


@dataclass
class Writer:
    """One worker in one life, with the answers it received."""

    number: int
    life: int
    outbox: Outbox = field(init=False)
    written: int = 0
    acknowledged: set[int] = field(default_factory=set)
    durable: int = 0  # as far as it was reported
    asked: dict[int, int] = field(default_factory=dict)  # unanswered reads: how many own writes they must see

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.number, self.life)

    @property
    def name(self) -> str:
        return f"{self.number}/{self.life}"


class World:
    """A random history, fixed by its seed: messages in flight may be reordered, doubled, delayed or lost."""

    def __init__(self, seed: int, workers: int = 3) -> None:
        self.random = random.Random(seed)
        self.writers = [Writer(number, 0) for number in range(workers)]
        self.past: list[tuple[Writer, int]] = []  # lives that are over, with what must be left of them
        self.actor = Tagged()
        self.inbox = Inbox(self.actor)
        self.snapshot = self.inbox.state()
        self.in_flight: list[Envelope | Answer] = []
        self.actions = {
            self.write: 6,
            self.read: 3,
            self.deliver: 14,
            self.lose_a_message: 1,
            self.double: 1,
            self.retry: 1,
            self.save: 1,
            self.crash: 0.4,
            self.restart_a_worker: 0.3,
            self.fall_silent: 0.3,
        }

    def run(self, actions: int) -> None:
        chosen = self.random.choices(list(self.actions), list(self.actions.values()), k=actions)
        for action in chosen:
            action()

    def settle(self) -> None:
        """Without further faults, let every worker read once more and send again what has no answer, until all have
        one."""
        for writer in self.writers:
            self.read(writer)
        for _ in range(1000):
            while self.in_flight:
                self.receive(self.in_flight.pop(self.random.randrange(len(self.in_flight))))
            self.inbox.lose(99)  # answers reads that wait for more writes than there will be
            waiting = [writer for writer in self.writers if writer.outbox.waiting]
            if not waiting:
                return
            for writer in waiting:
                self.in_flight += writer.outbox.overdue()
        raise AssertionError("some worker waits for ever")

    def check(self) -> None:
        for writer in self.writers:
            assert self.actor.counts.get(writer.name, 0) == writer.written
            assert writer.acknowledged == set(range(1, writer.written + 1)) and not writer.asked
        for writer, least in self.past:
            assert least <= self.actor.counts.get(writer.name, 0) <= writer.written
        assert self.actor.total == sum(self.actor.counts.values())

    # ------------------------------------------------------------------------------------------ actions

    def write(self) -> None:
        writer = self.random.choice(self.writers)
        writer.written += 1
        message = ActorMessage("push", {"name": writer.name, "number": writer.written})
        self.in_flight.append(writer.outbox.add(message, writes=True))

    def read(self, writer: Writer | None = None) -> None:
        writer = writer or self.random.choice(self.writers)
        total = self.random.choice((0, 0, self.actor.total + self.random.randrange(4)))
        envelope = writer.outbox.add(ActorMessage("pull", {"name": writer.name, "total": total}), writes=False)
        writer.asked[envelope.number] = writer.written
        self.in_flight.append(envelope)

    def deliver(self) -> None:
        """Deliver a message: mostly the oldest, so that much is in order, otherwise any."""
        if self.in_flight:
            at = 0 if self.random.random() < 0.6 else self.random.randrange(len(self.in_flight))
            self.receive(self.in_flight.pop(at))

    def lose_a_message(self) -> None:
        if self.in_flight:
            self.in_flight.pop(self.random.randrange(len(self.in_flight)))

    def double(self) -> None:
        if self.in_flight:
            self.in_flight.append(self.random.choice(self.in_flight))

    def retry(self) -> None:
        self.in_flight += self.random.choice(self.writers).outbox.overdue()

    def save(self) -> None:
        self.snapshot = self.inbox.state()
        self.inbox.saved(self.snapshot)

    def crash(self) -> None:
        """Return the actor to its last snapshot; messages in flight stay so."""
        self.actor = Tagged()
        self.inbox = Inbox(self.actor, self.inbox.epoch + 1)
        self.inbox.restore(self.snapshot)
        self.past = [(writer, min(least, writer.durable)) for writer, least in self.past]
        if self.random.random() < 0.5:  # some way to notice other than the next answer
            for writer in self.writers:
                received, durable = self.inbox.progress(writer.number, writer.life) or (0, 0)
                self.in_flight += writer.outbox.resume(self.inbox.epoch, received, durable)

    def restart_a_worker(self) -> None:
        at = self.random.randrange(len(self.writers))
        old = self.writers[at]
        # Of a worker that dies before it could send again what a killed actor lost, only the rest is left.
        self.past.append((old, min(len(old.acknowledged), self.actor.counts.get(old.name, 0))))
        self.writers[at] = Writer(old.number, old.life + 1)

    def fall_silent(self) -> None:
        self.in_flight += self.inbox.lose(self.random.randrange(len(self.writers)))

    # ------------------------------------------------------------------------------------------ inside

    def receive(self, received: Envelope | Answer) -> None:
        if isinstance(received, Envelope):
            self.in_flight += self.inbox.receive(received)
            return
        writer = self.writers[received.to]
        message, resend = writer.outbox.receive(received)
        self.in_flight += resend
        if received.life == writer.life:
            writer.durable = max(writer.durable, received.durable)
        if message is None:
            return
        if received.writes:
            assert message.fields == {"name": writer.name, "number": received.number}
            assert received.number not in writer.acknowledged, "one write was acknowledged twice"
            writer.acknowledged.add(received.number)
        else:
            assert message.number("mine") >= writer.asked.pop(received.number), "a read saw less than its reader wrote"

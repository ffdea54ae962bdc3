"""Boxes without sockets: workers, one machine, and a network that does its worst."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from laconic.rpc.envelope import Answer, Envelope
from laconic.rpc.inbox import Inbox
from laconic.rpc.outbox import Outbox
from laconic.worker import ActorMessage


class Tagged:
    """Remembers every write by its writer's name and number, and checks that each is the next one.

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
    """One worker in one life, with what it was told."""

    number: int
    life: int
    outbox: Outbox = field(init=False)
    written: int = 0
    acknowledged: set[int] = field(default_factory=set)
    durable: int = 0  # as far as it was told
    asked: dict[int, int] = field(default_factory=dict)  # unanswered reads: how many own writes they must see

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.number, self.life)

    @property
    def name(self) -> str:
        return f"{self.number}/{self.life}"


class World:
    """One seed, one history. Everything under way may be reordered, doubled, delayed or lost."""

    def __init__(self, seed: int, workers: int = 3) -> None:
        self.random = random.Random(seed)
        self.writers = [Writer(number, 0) for number in range(workers)]
        self.past: list[tuple[Writer, int]] = []  # lives that are over, with what must be left of them
        self.actor = Tagged()
        self.inbox = Inbox(self.actor)
        self.snapshot = self.inbox.state()
        self.flying: list[Envelope | Answer] = []
        self.deeds = {
            self.write: 6,
            self.read: 3,
            self.deliver: 14,
            self.lose_a_message: 1,
            self.double: 1,
            self.remind: 1,
            self.save: 1,
            self.crash: 0.4,
            self.restart_a_worker: 0.3,
            self.fall_silent: 0.3,
        }

    def live(self, deeds: int) -> None:
        chosen = self.random.choices(list(self.deeds), list(self.deeds.values()), k=deeds)
        for deed in chosen:
            deed()

    def come_to_rest(self) -> None:
        """No more trouble: everybody looks once more, and says again what has no answer, until all have one."""
        for writer in self.writers:
            self.read(writer)
        for _ in range(1000):
            while self.flying:
                self.arrive(self.flying.pop(self.random.randrange(len(self.flying))))
            self.inbox.lose(99)  # whoever waits for more writes than there will be is set free
            waiting = [writer for writer in self.writers if writer.outbox.waiting]
            if not waiting:
                return
            for writer in waiting:
                self.flying += writer.outbox.overdue()
        raise AssertionError("somebody waits for ever")

    def check(self) -> None:
        for writer in self.writers:
            assert self.actor.counts.get(writer.name, 0) == writer.written
            assert writer.acknowledged == set(range(1, writer.written + 1)) and not writer.asked
        for writer, least in self.past:
            assert least <= self.actor.counts.get(writer.name, 0) <= writer.written
        assert self.actor.total == sum(self.actor.counts.values())

    # ------------------------------------------------------------------------------------------ deeds

    def write(self) -> None:
        writer = self.random.choice(self.writers)
        writer.written += 1
        message = ActorMessage("push", {"name": writer.name, "number": writer.written})
        self.flying.append(writer.outbox.endpoint(message, writes=True))

    def read(self, writer: Writer | None = None) -> None:
        writer = writer or self.random.choice(self.writers)
        total = self.random.choice((0, 0, self.actor.total + self.random.randrange(4)))
        envelope = writer.outbox.endpoint(ActorMessage("pull", {"name": writer.name, "total": total}), writes=False)
        writer.asked[envelope.number] = writer.written
        self.flying.append(envelope)

    def deliver(self) -> None:
        """Mostly the oldest, so that much is in order; else any."""
        if self.flying:
            at = 0 if self.random.random() < 0.6 else self.random.randrange(len(self.flying))
            self.arrive(self.flying.pop(at))

    def lose_a_message(self) -> None:
        if self.flying:
            self.flying.pop(self.random.randrange(len(self.flying)))

    def double(self) -> None:
        if self.flying:
            self.flying.append(self.random.choice(self.flying))

    def remind(self) -> None:
        self.flying += self.random.choice(self.writers).outbox.overdue()

    def save(self) -> None:
        self.snapshot = self.inbox.state()
        self.inbox.saved(self.snapshot)

    def crash(self) -> None:
        """Back to the last snapshot; what is under way stays so."""
        self.actor = Tagged()
        self.inbox = Inbox(self.actor, self.inbox.epoch + 1)
        self.inbox.restore(self.snapshot)
        self.past = [(writer, min(least, writer.durable)) for writer, least in self.past]
        if self.random.random() < 0.5:  # some way to notice other than the next answer
            for writer in self.writers:
                received, durable = self.inbox.progress(writer.number, writer.life) or (0, 0)
                self.flying += writer.outbox.reopened(self.inbox.epoch, received, durable)

    def restart_a_worker(self) -> None:
        at = self.random.randrange(len(self.writers))
        old = self.writers[at]
        # Of a worker that dies before it could repeat what a killed machine forgot, only that is left.
        self.past.append((old, min(len(old.acknowledged), self.actor.counts.get(old.name, 0))))
        self.writers[at] = Writer(old.number, old.life + 1)

    def fall_silent(self) -> None:
        self.flying += self.inbox.lose(self.random.randrange(len(self.writers)))

    # ------------------------------------------------------------------------------------------ inside

    def arrive(self, said: Envelope | Answer) -> None:
        if isinstance(said, Envelope):
            self.flying += self.inbox.receive(said)
            return
        writer = self.writers[said.to]
        message, again = writer.outbox.heard(said)
        self.flying += again
        if said.life == writer.life:
            writer.durable = max(writer.durable, said.durable)
        if message is None:
            return
        if said.writes:
            assert message.fields == {"name": writer.name, "number": said.number}
            assert said.number not in writer.acknowledged, "one write was acknowledged twice"
            writer.acknowledged.add(said.number)
        else:
            assert message.number("mine") >= writer.asked.pop(said.number), "a read saw less than its reader wrote"

"""What letters travel in."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.worker import ActorMessage


@dataclass(frozen=True, eq=False)
class Envelope:
    """From a worker to a machine.

    Writes and reads are numbered apart, from 1, within a sender's `life` (a restarted worker lives anew). A read comes
    `after` so many of its sender's writes: it sees all of them. Answers to writes up to `confirmed` have arrived and
    need not be kept.
    """

    sender: int
    life: int
    number: int
    writes: bool
    after: int
    confirmed: int
    message: ActorMessage


@dataclass(frozen=True, eq=False)
class Answer:
    """From a machine to a worker: to its write or read of that number; without a letter it only says how far it is.

    `epoch` counts the machine's lives. It has `received` so many of this worker's writes, and holds the first `durable`
    of them where no kill can reach them.
    """

    to: int
    life: int
    number: int
    writes: bool
    epoch: int
    received: int
    durable: int
    message: ActorMessage | None

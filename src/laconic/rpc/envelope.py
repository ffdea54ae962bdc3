"""The envelopes of messages to actors and of their answers: what exactly-once delivery needs beside the message."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.worker import ActorMessage


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message from a worker to an actor.

    Writes and reads are numbered separately, from 1, within a sender's `life` (which counts the worker's restarts). A
    read comes `after` so many of its sender's writes: it sees all of them. Answers to writes up to `confirmed` have
    arrived and need not be kept.
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
    """An actor's answer to a worker's write or read of that number; without a message it only reports progress.

    `epoch` counts the actor's starts. It has `received` so many of this worker's writes, and holds the first `durable`
    of them in a snapshot, where a kill cannot lose them.
    """

    to: int
    life: int
    number: int
    writes: bool
    epoch: int
    received: int
    durable: int
    message: ActorMessage | None

"""The sender's side of the messages to one actor: kept until they are durable, sent again when they may be lost."""

from __future__ import annotations

from dataclasses import replace

from laconic.errors import WorkerLost
from laconic.rpc.envelope import Answer, Envelope
from laconic.worker import ActorMessage

_OVERHEAD_BYTES = 512  # roughly what a message takes beside its tensors


class Outbox:
    """Numbers messages, keeps each write until the actor holds it durably, and decides what to send again.

    It neither sends nor waits: its user sends the envelopes that `add`, `receive`, `resume` and `overdue` return, in
    that order.
    """

    def __init__(self, sender: int, life: int) -> None:
        self._sender, self._life = sender, life
        self._epoch: int | None = None
        self._written = self._asked = self._confirmed = 0
        self._kept: dict[int, Envelope] = {}  # writes that a restarted actor may need again, in order
        self._answered: set[int] = set()  # those of them that were answered, beyond `_confirmed`
        self._reads: dict[int, Envelope] = {}  # unanswered
        self._resent: tuple[int, int] | None = None  # the epoch and the count from which all was sent again
        self._kept_bytes = self._durable = 0

    @property
    def kept_bytes(self) -> int:
        """The bytes of the writes that are not known to be durable."""
        return self._kept_bytes

    @property
    def is_safe(self) -> bool:
        """Whether all writes are durable, so that no kill of the actor can lose any."""
        return not self._kept

    @property
    def waiting(self) -> bool:
        """Whether any answer is outstanding."""
        return bool(self._reads) or self._confirmed < self._written

    def add(self, message: ActorMessage, writes: bool) -> Envelope:
        """Number a new message and return the envelope to send; a write is kept until it is durable."""
        if writes:
            self._written += 1
        else:
            self._asked += 1
        number = self._written if writes else self._asked
        envelope = Envelope(self._sender, self._life, number, writes, self._written, self._confirmed, message)
        (self._kept if writes else self._reads)[number] = envelope
        self._kept_bytes += message.nbytes + _OVERHEAD_BYTES if writes else 0
        return envelope

    def receive(self, answer: Answer) -> tuple[ActorMessage | None, list[Envelope]]:
        """Take in an answer: return its message, if it is new and for this sender, and what must be sent again."""
        if answer.to != self._sender or answer.life != self._life:
            return None, []
        message = self._accept(answer)
        self._discard_durable(answer.durable)
        restarted = self._epoch is not None and answer.epoch > self._epoch
        if self._epoch is None or restarted:
            self._epoch = answer.epoch
        if answer.epoch < self._epoch or not (restarted or answer.message is None):
            return message, []
        if restarted:
            return message, self.resume(answer.epoch, answer.received, answer.durable)
        if self._resent == (answer.epoch, answer.received):  # the actor reports a gap once per message beyond it
            return message, []
        self._resent = (answer.epoch, answer.received)
        return message, self._refreshed([e for number, e in self._kept.items() if number > answer.received])

    def resume(self, epoch: int, received: int, durable: int) -> list[Envelope]:
        """Return what to send after the actor restarted or the connection was made anew: the writes that the actor
        lacks or whose answers may be lost, and all unanswered reads."""
        self._epoch, self._resent = epoch, (epoch, received)
        self._discard_durable(durable)
        self._check_nothing_lost(received)
        lacking = [e for number, e in self._kept.items() if number > received or not self._is_answered(number)]
        return self._refreshed([*lacking, *self._reads.values()])

    def saved(self, durable: int) -> None:
        """Note that so many writes are durable, and stop keeping them."""
        self._discard_durable(durable)

    def overdue(self) -> list[Envelope]:
        """Return what to send when no answer came for a while: the first unanswered write, whose answer tells how far
        the actor is, and all unanswered reads."""
        self._resent = None
        first = next((e for number, e in self._kept.items() if not self._is_answered(number)), None)
        return self._refreshed([*([] if first is None else [first]), *self._reads.values()])

    def _accept(self, answer: Answer) -> ActorMessage | None:
        if answer.message is None:
            return None
        if not answer.writes:
            return answer.message if self._reads.pop(answer.number, None) is not None else None
        if answer.number > self._written or self._is_answered(answer.number):
            return None
        self._answered.add(answer.number)
        while self._confirmed + 1 in self._answered:
            self._confirmed += 1
            self._answered.discard(self._confirmed)
        return answer.message

    def _check_nothing_lost(self, received: int) -> None:
        """Raise if the actor lacks writes that it had reported as durable, since they may not be kept here any more."""
        if received < self._durable:
            raise WorkerLost(
                f"a server came back without {self._durable - received} writes of worker {self._sender} that it had "
                "reported as durable: its newest snapshot is damaged. Start the run again from a checkpoint."
            )

    def _discard_durable(self, durable: int) -> None:
        self._durable = max(self._durable, durable)
        for number in [n for n in self._kept if n <= durable and self._is_answered(n)]:
            self._kept_bytes -= self._kept.pop(number).message.nbytes + _OVERHEAD_BYTES

    def _is_answered(self, number: int) -> bool:
        return number <= self._confirmed or number in self._answered

    def _refreshed(self, envelopes: list[Envelope]) -> list[Envelope]:
        return [replace(envelope, confirmed=self._confirmed) for envelope in envelopes]

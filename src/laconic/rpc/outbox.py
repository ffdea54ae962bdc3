"""A worker's side of its letters to one machine: kept until they are safe, said again when they may be lost."""

from __future__ import annotations

from dataclasses import replace

from laconic.errors import WorkerLost
from laconic.rpc.envelope import Answer, Envelope
from laconic.worker import ActorMessage

_LETTER_BYTES = 512  # what a letter takes beside its tensors, about


class Outbox:
    """Numbers letters, keeps each write until the machine holds it durably, and knows what to repeat when.

    It neither sends nor waits: whoever carries envelopes hands over what `post`, `heard` and `overdue` return, in that
    order.
    """

    def __init__(self, sender: int, life: int) -> None:
        self._sender, self._life = sender, life
        self._epoch: int | None = None
        self._written = self._asked = self._confirmed = 0
        self._kept: dict[int, Envelope] = {}  # writes that a restarted machine may need again, in order
        self._answered: set[int] = set()  # of these, beyond `_confirmed`
        self._reads: dict[int, Envelope] = {}  # unanswered
        self._repeated: tuple[int, int] | None = None  # the epoch and the count from which all was said again
        self._kept_bytes = self._durable = 0

    @property
    def kept_bytes(self) -> int:
        """Of writes that are not known to be safe."""
        return self._kept_bytes

    @property
    def is_safe(self) -> bool:
        """Whether no kill of the machine can lose anything."""
        return not self._kept

    @property
    def waiting(self) -> bool:
        """Whether any answer is outstanding."""
        return bool(self._reads) or self._confirmed < self._written

    def post(self, message: ActorMessage, writes: bool) -> Envelope:
        if writes:
            self._written += 1
        else:
            self._asked += 1
        number = self._written if writes else self._asked
        envelope = Envelope(self._sender, self._life, number, writes, self._written, self._confirmed, message)
        (self._kept if writes else self._reads)[number] = envelope
        self._kept_bytes += message.nbytes + _LETTER_BYTES if writes else 0
        return envelope

    def heard(self, answer: Answer) -> tuple[ActorMessage | None, list[Envelope]]:
        """The letter, unless it was heard before or is none of ours; and what must be said again."""
        if answer.to != self._sender or answer.life != self._life:
            return None, []
        message = self._take(answer)
        self._let_go(answer.durable)
        anew = self._epoch is not None and answer.epoch > self._epoch
        if self._epoch is None or anew:
            self._epoch = answer.epoch
        if answer.epoch < self._epoch or not (anew or answer.message is None):
            return message, []
        if anew:
            return message, self.reopened(answer.epoch, answer.received, answer.durable)
        if self._repeated == (answer.epoch, answer.received):  # each letter beyond a gap makes the machine say so
            return message, []
        self._repeated = (answer.epoch, answer.received)
        return message, self._fresh([e for number, e in self._kept.items() if number > answer.received])

    def reopened(self, epoch: int, received: int, durable: int) -> list[Envelope]:
        """The machine, or the way to it, is new: what it lacks, what it may have answered in vain, all questions."""
        self._epoch, self._repeated = epoch, (epoch, received)
        self._let_go(durable)
        self._refuse_loss(received)
        lacking = [e for number, e in self._kept.items() if number > received or not self._is_answered(number)]
        return self._fresh([*lacking, *self._reads.values()])

    def saved(self, durable: int) -> None:
        """So many writes are now where no kill can reach them."""
        self._let_go(durable)

    def overdue(self) -> list[Envelope]:
        """Nothing was heard for a while: the first unanswered write will tell how far the machine is; reads may simply
        be asked again."""
        self._repeated = None
        first = next((e for number, e in self._kept.items() if not self._is_answered(number)), None)
        return self._fresh([*([] if first is None else [first]), *self._reads.values()])

    def _take(self, answer: Answer) -> ActorMessage | None:
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

    def _refuse_loss(self, received: int) -> None:
        """What was called safe may have been let go here, so that nobody has it any more if it was not."""
        if received < self._durable:
            raise WorkerLost(
                f"a server came back without {self._durable - received} writes of worker {self._sender} that it had "
                "called safe: its newest snapshot is damaged. Start the run again from a checkpoint."
            )

    def _let_go(self, durable: int) -> None:
        self._durable = max(self._durable, durable)
        for number in [n for n in self._kept if n <= durable and self._is_answered(n)]:
            self._kept_bytes -= self._kept.pop(number).message.nbytes + _LETTER_BYTES

    def _is_answered(self, number: int) -> bool:
        return number <= self._confirmed or number in self._answered

    def _fresh(self, envelopes: list[Envelope]) -> list[Envelope]:
        return [replace(envelope, confirmed=self._confirmed) for envelope in envelopes]

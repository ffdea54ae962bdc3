"""A worker's side of its letters to one machine: kept until they are safe, said again when they may be lost."""

from __future__ import annotations

from dataclasses import replace

from laconic.engine.post.envelope import Answer, Envelope
from laconic.worker import Letter


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

    @property
    def kept_bytes(self) -> int:
        """Of writes that are not known to be safe."""
        return sum(envelope.letter.nbytes for envelope in self._kept.values())

    @property
    def waiting(self) -> bool:
        """Whether any answer is outstanding."""
        return bool(self._reads) or self._confirmed < self._written

    def post(self, letter: Letter, writes: bool) -> Envelope:
        if writes:
            self._written += 1
        else:
            self._asked += 1
        number = self._written if writes else self._asked
        envelope = Envelope(self._sender, self._life, number, writes, self._written, self._confirmed, letter)
        (self._kept if writes else self._reads)[number] = envelope
        return envelope

    def heard(self, answer: Answer) -> tuple[Letter | None, list[Envelope]]:
        """The letter, unless it was heard before or is none of ours; and what must be said again."""
        if answer.to != self._sender or answer.life != self._life:
            return None, []
        letter = self._take(answer)
        self._let_go(answer.durable)
        anew = self._epoch is not None and answer.epoch > self._epoch
        if self._epoch is None or anew:
            self._epoch = answer.epoch
        if answer.epoch < self._epoch or not (anew or answer.letter is None):
            return letter, []
        again = [envelope for number, envelope in self._kept.items() if number > answer.received]
        return letter, self._fresh([*again, *(self._reads.values() if anew else ())])

    def overdue(self) -> list[Envelope]:
        """Nothing was heard for a while: the first unanswered write will tell how far the machine is; reads may simply
        be asked again."""
        first = next((e for number, e in self._kept.items() if not self._is_answered(number)), None)
        return self._fresh([*([] if first is None else [first]), *self._reads.values()])

    def _take(self, answer: Answer) -> Letter | None:
        if answer.letter is None:
            return None
        if not answer.writes:
            return answer.letter if self._reads.pop(answer.number, None) is not None else None
        if answer.number > self._written or self._is_answered(answer.number):
            return None
        self._answered.add(answer.number)
        while self._confirmed + 1 in self._answered:
            self._confirmed += 1
            self._answered.discard(self._confirmed)
        return answer.letter

    def _let_go(self, durable: int) -> None:
        for number in [n for n in self._kept if n <= durable and self._is_answered(n)]:
            del self._kept[number]

    def _is_answered(self, number: int) -> bool:
        return number <= self._confirmed or number in self._answered

    def _fresh(self, envelopes: list[Envelope]) -> list[Envelope]:
        return [replace(envelope, confirmed=self._confirmed) for envelope in envelopes]

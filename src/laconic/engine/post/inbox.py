"""A machine's side: every write once, in its sender's order; reads when the machine has an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from laconic.engine.post.envelope import Answer, Envelope
from laconic.worker import Letter, Machine


@dataclass
class _Sender:
    """How far one worker is in its present life, and what it was answered that it may not have heard."""

    life: int
    received: int = 0
    durable: int = 0
    answers: dict[int, Letter] = field(default_factory=dict)
    gone: bool = False


class Inbox:
    """Stands before a machine; like it, a value that reacts and can be saved.

    `epoch` is how often the machine was started, so that workers notice that it forgot what came after its last
    snapshot.
    """

    def __init__(self, machine: Machine, epoch: int = 1) -> None:
        self.machine, self.epoch = machine, epoch
        self._senders: dict[int, _Sender] = {}
        self._held: dict[tuple[int, int], Envelope] = {}  # reads without an answer yet, in order of arrival

    def receive(self, envelope: Envelope) -> list[Answer]:
        """What to answer now, to whomever: a write may set others free."""
        sender = self._meet(envelope)
        if sender is None:
            return []
        for number in [n for n in sender.answers if n <= envelope.confirmed]:
            del sender.answers[number]
        if not envelope.writes:
            self._held[envelope.sender, envelope.number] = envelope
            behind = envelope.after > sender.received
            return [*([self._answer(envelope, None)] if behind else []), *self._look_again(envelope.sender)]
        if envelope.number <= sender.received:
            said = sender.answers.get(envelope.number)
            return [] if said is None else [self._answer(envelope, said)]
        if envelope.number > sender.received + 1:
            return [self._answer(envelope, None)]
        letter = self.machine.write(envelope.sender, envelope.letter)
        sender.received = envelope.number
        sender.answers[envelope.number] = letter
        return [self._answer(envelope, letter), *self._look_again()]

    def lose(self, worker: int) -> list[Answer]:
        """A worker has fallen silent: whoever waited for it may go on."""
        sender = self._senders.get(worker)
        if sender is None or sender.gone:
            return []
        sender.gone = True
        for key in [key for key in self._held if key[0] == worker]:
            del self._held[key]
        self.machine.lose(worker)
        return self._look_again()

    def state(self) -> dict[str, Any]:
        """Everything, as plain data; call `saved` with it when it is where no kill can reach it."""
        senders = {
            str(worker): {
                "life": s.life,
                "received": s.received,
                "gone": s.gone,
                "answers": {
                    str(n): {"kind": letter.kind, "fields": dict(letter.fields), "tensors": list(letter.tensors)}
                    for n, letter in s.answers.items()
                },
            }
            for worker, s in self._senders.items()
        }
        return {"senders": senders, "machine": self.machine.state()}

    def saved(self, state: dict[str, Any]) -> None:
        for worker, kept in state["senders"].items():
            sender = self._senders.get(int(worker))
            if sender is not None and sender.life == kept["life"]:
                sender.durable = max(sender.durable, kept["received"])

    def restore(self, state: dict[str, Any]) -> None:
        self._held.clear()
        self._senders = {
            int(worker): _Sender(
                kept["life"],
                kept["received"],
                kept["received"],
                {int(n): Letter(a["kind"], a["fields"], tuple(a["tensors"])) for n, a in kept["answers"].items()},
                kept["gone"],
            )
            for worker, kept in state["senders"].items()
        }
        self.machine.restore(state["machine"])

    def _meet(self, envelope: Envelope) -> _Sender | None:
        """The sender in the life it writes from; none where that life is over."""
        known = self._senders.get(envelope.sender)
        if known is not None and envelope.life < known.life:
            return None
        if known is None or envelope.life > known.life:
            if known is not None:
                self.lose(envelope.sender)
            known = self._senders[envelope.sender] = _Sender(envelope.life)
        known.gone = False
        return known

    def _look_again(self, only: int | None = None) -> list[Answer]:
        answers: list[Answer] = []
        for key, envelope in list(self._held.items()):
            sender = self._senders[envelope.sender]
            if (only is not None and key[0] != only) or envelope.life != sender.life:
                continue
            if envelope.after <= sender.received:
                letter = self.machine.read(envelope.sender, envelope.letter)
                if letter is not None:
                    del self._held[key]
                    answers.append(self._answer(envelope, letter))
        return answers

    def _answer(self, envelope: Envelope, letter: Letter | None) -> Answer:
        sender = self._senders[envelope.sender]
        return Answer(
            envelope.sender,
            envelope.life,
            envelope.number,
            envelope.writes,
            self.epoch,
            sender.received,
            sender.durable,
            letter,
        )

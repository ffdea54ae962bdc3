"""A machine's side: every write once, in its sender's order; reads when the machine has an answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from laconic.errors import LaconicError
from laconic.rpc.envelope import Answer, Envelope
from laconic.worker import Actor, ActorMessage


@dataclass
class _Sender:
    """How far one worker is in its present life, and what it was answered that it may not have heard."""

    life: int
    received: int = 0
    durable: int = 0
    answers: dict[int, ActorMessage] = field(default_factory=dict)
    gone: bool = False


class Inbox:
    """Stands before a machine; like it, a value that reacts and can be saved.

    `epoch` is how often the machine was started, so that workers notice that it forgot what came after its last
    snapshot. Where it is never `saved`, workers need not keep anything for it: what it received counts as durable.
    A write that the machine does not take yet is kept, with all that its sender writes after it, until it does.
    What the machine refuses with a `LaconicError` is answered with a letter "refused" that says why.
    """

    def __init__(self, actor: Actor, epoch: int = 1, is_saved: bool = True) -> None:
        self.actor, self.epoch, self._is_saved = actor, epoch, is_saved
        self._senders: dict[int, _Sender] = {}
        self._held: dict[tuple[int, int], Envelope] = {}  # reads without an answer yet, in order of arrival
        self._early: dict[int, deque[Envelope]] = {}  # writes that the machine did not take yet, by sender, in order

    def receive(self, envelope: Envelope) -> list[Answer]:
        """What to answer now, to whomever: a write may set others free."""
        sender, freed = self._meet(envelope)
        return [] if sender is None else [*freed, *self._take(sender, envelope)]

    def _take(self, sender: _Sender, envelope: Envelope) -> list[Answer]:
        for number in [n for n in sender.answers if n <= envelope.confirmed]:
            del sender.answers[number]
        if not envelope.writes:
            self._held[envelope.sender, envelope.number] = envelope
            behind = envelope.after > sender.received
            return [*([self._answer(envelope, None)] if behind else []), *self._look_again(envelope.sender)]
        if envelope.number <= sender.received:
            said = sender.answers.get(envelope.number)
            return [] if said is None else [self._answer(envelope, said)]
        early = self._early.setdefault(envelope.sender, deque())
        if envelope.number > sender.received + len(early) + 1:
            return [self._answer(envelope, None)]
        if envelope.number == sender.received + len(early) + 1:
            early.append(envelope)
        return self._write()

    def _write(self) -> list[Answer]:
        """What has come, as far as the machine takes it: one write may be what another sender's had to wait for."""
        answers: list[Answer] = []
        taken = True
        while taken:
            taken = False
            for worker, early in list(self._early.items()):
                while early and (message := self._written(early[0])) is not None:
                    envelope = early.popleft()
                    sender = self._senders[worker]
                    sender.received = envelope.number
                    sender.answers[envelope.number] = message
                    answers.append(self._answer(envelope, message))
                    taken = True
                if not early:
                    del self._early[worker]
            taken = taken and bool(self._early)
        return [*answers, *self._look_again()] if answers else []

    def _written(self, envelope: Envelope) -> ActorMessage | None:
        try:
            return self.actor.write(envelope.sender, envelope.message)
        except LaconicError as error:
            return _refusal(error)

    def lose(self, worker: int) -> list[Answer]:
        """A worker has fallen silent: whoever waited for it may go on."""
        sender = self._senders.get(worker)
        if sender is None:  # it never wrote, but may be expected
            sender = self._senders[worker] = _Sender(-1)
        if sender.gone:
            return []
        sender.gone = True
        for key in [key for key in self._held if key[0] == worker]:
            del self._held[key]
        self._early.pop(worker, None)
        self.actor.lose(worker)
        return self._look_again()

    def state(self) -> dict[str, Any]:
        """Everything, as plain data; call `saved` with it when it is where no kill can reach it."""
        senders = {
            str(worker): {
                "life": s.life,
                "received": s.received,
                "gone": s.gone,
                "answers": {
                    str(n): {"kind": message.kind, "fields": dict(message.fields), "tensors": list(message.tensors)}
                    for n, message in s.answers.items()
                },
            }
            for worker, s in self._senders.items()
        }
        return {"senders": senders, "machine": self.actor.state()}

    def saved(self, state: dict[str, Any]) -> None:
        for worker, kept in state["senders"].items():
            sender = self._senders.get(int(worker))
            if sender is not None and sender.life == kept["life"]:
                sender.durable = max(sender.durable, kept["received"])

    def restore(self, state: dict[str, Any]) -> None:
        self._held.clear()
        self._early.clear()
        self._senders = {
            int(worker): _Sender(
                kept["life"],
                kept["received"],
                kept["received"],
                {int(n): ActorMessage(a["kind"], a["fields"], tuple(a["tensors"])) for n, a in kept["answers"].items()},
                kept["gone"],
            )
            for worker, kept in state["senders"].items()
        }
        self.actor.restore(state["machine"])

    @property
    def senders(self) -> list[int]:
        """Who has written and is not gone."""
        return sorted(worker for worker, sender in self._senders.items() if not sender.gone)

    def progress(self, worker: int, life: int) -> tuple[int, int] | None:
        """How many writes of this life were received, and how many of these are durable; none where it is over."""
        sender = self._senders.get(worker)
        if sender is None or sender.life < life:
            return 0, 0
        return (sender.received, self._durable(sender)) if sender.life == life else None

    def _meet(self, envelope: Envelope) -> tuple[_Sender | None, list[Answer]]:
        """The sender in the life it writes from, none where that life is over; and answers to whoever waited for its
        former life."""
        known = self._senders.get(envelope.sender)
        freed: list[Answer] = []
        if known is not None and envelope.life < known.life:
            return None, freed
        if known is None or envelope.life > known.life:
            if known is not None:
                freed = self.lose(envelope.sender)
            known = self._senders[envelope.sender] = _Sender(envelope.life)
        known.gone = False
        return known, freed

    def _look_again(self, only: int | None = None) -> list[Answer]:
        answers: list[Answer] = []
        for key, envelope in list(self._held.items()):
            sender = self._senders[envelope.sender]
            if (only is not None and key[0] != only) or envelope.life != sender.life:
                continue
            if envelope.after <= sender.received:
                try:
                    message = self.actor.read(envelope.sender, envelope.message)
                except LaconicError as error:
                    message = _refusal(error)
                if message is not None:
                    del self._held[key]
                    answers.append(self._answer(envelope, message))
        return answers

    def _answer(self, envelope: Envelope, message: ActorMessage | None) -> Answer:
        sender = self._senders[envelope.sender]
        return Answer(
            envelope.sender,
            envelope.life,
            envelope.number,
            envelope.writes,
            self.epoch,
            sender.received,
            self._durable(sender),
            message,
        )

    def _durable(self, sender: _Sender) -> int:
        return sender.durable if self._is_saved else sender.received


def _refusal(error: LaconicError) -> ActorMessage:
    return ActorMessage("refused", {"why": str(error)})

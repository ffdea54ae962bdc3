"""The receiving side of an actor: every write takes effect once, in its sender's order; reads wait for an answer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from laconic.errors import LaconicError
from laconic.rpc.envelope import Answer, Envelope
from laconic.worker import Actor, ActorMessage


@dataclass
class _Sender:
    """One worker's progress in its present life, and the answers that it may not have received."""

    life: int
    received: int = 0
    durable: int = 0
    answers: dict[int, ActorMessage] = field(default_factory=dict)
    gone: bool = False


class Inbox:
    """Removes duplicates and restores order before messages reach an actor; like the actor, it can be saved.

    `epoch` is how often the actor was started, so that workers notice that it lost what came after its last snapshot.
    Where it is never `saved`, workers need not keep anything for it: what it received counts as durable. A write that
    the actor does not accept yet is kept, with all that its sender writes after it, until it does. What the actor
    refuses with a `LaconicError` is answered with a message "refused" that says why.
    """

    def __init__(self, actor: Actor, epoch: int = 1, is_saved: bool = True) -> None:
        self.actor, self.epoch, self._is_saved = actor, epoch, is_saved
        self._senders: dict[int, _Sender] = {}
        self._held: dict[tuple[int, int], Envelope] = {}  # reads without an answer yet, in order of arrival
        self._blocked: dict[int, deque[Envelope]] = {}  # writes that the actor did not accept yet, by sender, in order

    def receive(self, envelope: Envelope) -> list[Answer]:
        """Take in a message and return all answers to send now, to any worker: a write may be what other reads waited
        for."""
        sender, released = self._sender_of(envelope)
        return [] if sender is None else [*released, *self._process(sender, envelope)]

    def _process(self, sender: _Sender, envelope: Envelope) -> list[Answer]:
        for number in [n for n in sender.answers if n <= envelope.confirmed]:
            del sender.answers[number]
        if not envelope.writes:
            self._held[envelope.sender, envelope.number] = envelope
            behind = envelope.after > sender.received
            return [*([self._answer(envelope, None)] if behind else []), *self._answer_held_reads(envelope.sender)]
        if envelope.number <= sender.received:
            kept = sender.answers.get(envelope.number)
            return [] if kept is None else [self._answer(envelope, kept)]
        blocked = self._blocked.setdefault(envelope.sender, deque())
        if envelope.number > sender.received + len(blocked) + 1:
            return [self._answer(envelope, None)]
        if envelope.number == sender.received + len(blocked) + 1:
            blocked.append(envelope)
        return self._write()

    def _write(self) -> list[Answer]:
        """Apply the writes that have arrived as far as the actor accepts them: one may be what another had to wait
        for."""
        answers: list[Answer] = []
        progressed = True
        while progressed:
            progressed = False
            for worker, blocked in list(self._blocked.items()):
                while blocked and (message := self._write_one(blocked[0])) is not None:
                    envelope = blocked.popleft()
                    sender = self._senders[worker]
                    sender.received = envelope.number
                    sender.answers[envelope.number] = message
                    answers.append(self._answer(envelope, message))
                    progressed = True
                if not blocked:
                    del self._blocked[worker]
            progressed = progressed and bool(self._blocked)
        return [*answers, *self._answer_held_reads()] if answers else []

    def _write_one(self, envelope: Envelope) -> ActorMessage | None:
        try:
            return self.actor.write(envelope.sender, envelope.message)
        except LaconicError as error:
            return _refusal(error)

    def lose(self, worker: int) -> list[Answer]:
        """Give up a worker that has fallen silent, and return the answers to those that waited for it."""
        sender = self._senders.get(worker)
        if sender is None:  # it never wrote, but may be expected
            sender = self._senders[worker] = _Sender(-1)
        if sender.gone:
            return []
        sender.gone = True
        for key in [key for key in self._held if key[0] == worker]:
            del self._held[key]
        self._blocked.pop(worker, None)
        self.actor.lose(worker)
        return self._answer_held_reads()

    def state(self) -> dict[str, Any]:
        """Return everything as plain data; call `saved` with it when it is on disk."""
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
        """Note that this state is on disk, so that the writes it holds are durable."""
        for worker, kept in state["senders"].items():
            sender = self._senders.get(int(worker))
            if sender is not None and sender.life == kept["life"]:
                sender.durable = max(sender.durable, kept["received"])

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a saved state."""
        self._held.clear()
        self._blocked.clear()
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
        """The workers that have written and are not lost."""
        return sorted(worker for worker, sender in self._senders.items() if not sender.gone)

    def progress(self, worker: int, life: int) -> tuple[int, int] | None:
        """Return how many writes of this life were received and how many of these are durable; None if a later life has
        begun."""
        sender = self._senders.get(worker)
        if sender is None or sender.life < life:
            return 0, 0
        return (sender.received, self._durable(sender)) if sender.life == life else None

    def _sender_of(self, envelope: Envelope) -> tuple[_Sender | None, list[Answer]]:
        """Return the sender in the life it writes from, None if a later life has begun; and the answers to those that
        waited for its former life."""
        known = self._senders.get(envelope.sender)
        released: list[Answer] = []
        if known is not None and envelope.life < known.life:
            return None, released
        if known is None or envelope.life > known.life:
            if known is not None:
                released = self.lose(envelope.sender)
            known = self._senders[envelope.sender] = _Sender(envelope.life)
        known.gone = False
        return known, released

    def _answer_held_reads(self, only: int | None = None) -> list[Answer]:
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

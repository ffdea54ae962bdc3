"""A member's actor: it exchanges chunks with the other members of its group while its worker waits or computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laconic.architecture.elastic.exchange import ByParts, Chunk, Exchange, MakeExchange
from laconic.errors import ContractError
from laconic.worker import ActorMessage, Field


@dataclass(eq=False)
class Attempt:
    """An attempt in which this member takes part: its number, its members' addresses, and the state of the exchange."""

    number: tuple[int, int]
    members: list[str]
    exchange: Exchange
    reported: bool = False


class Member:
    """Takes part in rounds for one worker.

    The worker writes its vector (`begin`), and reads the `outcome`: the mean and the number of members that it is of,
    or that this member was expelled. The vector is kept until then, so that an attempt can be made again. Chunks of an
    attempt that this member has not been told of yet wait; those of earlier ones are dropped. Others read the `latest`
    mean, of a round or a later one, as a worker does that enters late; where that will never be here, they are told.
    """

    def __init__(self, address: str, matchmaker: str, make: MakeExchange = ByParts) -> None:
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._address, self._matchmaker, self._make = address, matchmaker, make
        self._round = self._entry = -1
        self._own: Tensor | None = None
        self._attempt: Attempt | None = None
        self._early: list[ActorMessage] = []
        self._outcome: ActorMessage | None = None
        self._latest: ActorMessage | None = None

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.kind == "begin":
            self._round, self._entry = message.number("round"), message.number("entry")
            (self._own,) = message.tensors
            self._outcome = self._attempt = None
        elif message.kind == "group":
            self._begin(_number(message), members_of(message))
        elif message.kind == "chunk":
            self._receive(message)
        elif message.kind == "commit":
            self._commit(_number(message))
        elif message.kind == "expelled":
            if message.number("entry") == self._entry and self._outcome is None:
                self._end(ActorMessage("expelled"))
        elif message.kind != "leave":
            raise ContractError(f"a member takes no {message.kind!r}; write begin, group, chunk, commit or expelled")
        return ActorMessage("noted")

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if message.kind == "outcome":
            return self._outcome
        return self._answer_latest(message.number("round"))

    def lose(self, sender: int) -> None:
        """Do nothing: the matchmaker alone decides who is lost."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        raise ContractError("a member begins anew after a restart: it enters again under another address")

    # ------------------------------------------------------------------------------------------ inside

    def _answer_latest(self, wanted: int) -> ActorMessage | None:
        if self._latest is not None and self._latest.number("round") >= wanted:
            return self._latest
        can_come = self._round <= wanted and (self._outcome is None or self._outcome.kind != "expelled")
        return None if can_come else ActorMessage("missed")

    def _begin(self, number: tuple[int, int], members: list[str]) -> None:
        if number[0] != self._round or self._own is None:
            return
        position = members.index(self._address)
        attempt = self._attempt = Attempt(number, members, self._make(self._own, position, len(members)))
        self._send(attempt, attempt.exchange.begin())
        early, self._early = self._early, []
        for message in early:
            self._receive(message)

    def _receive(self, message: ActorMessage) -> None:
        number, attempt = _number(message), self._attempt
        if attempt is None or number > attempt.number:
            if number[0] >= self._round:
                self._early.append(message)
        elif number == attempt.number:
            source, phase, place = message.number("source"), str(message.fields["phase"]), message.number("number")
            self._send(attempt, attempt.exchange.receive(source, phase, place, message.tensors[0]))

    def _send(self, attempt: Attempt, chunks: list[Chunk]) -> None:
        """Send chunks to members, and report to the matchmaker once the result is complete."""
        round_number, attempt_number = attempt.number
        for chunk in chunks:
            fields: dict[str, Field] = {
                "round": round_number,
                "attempt": attempt_number,
                "source": attempt.members.index(self._address),
                "phase": chunk.phase,
                "number": chunk.number,
            }
            self.outgoing.append((attempt.members[chunk.to], ActorMessage("chunk", fields, (chunk.tensor,))))
        if attempt.exchange.result is not None and not attempt.reported:
            attempt.reported = True
            report: dict[str, Field] = {"member": self._address, "round": round_number, "attempt": attempt_number}
            self.outgoing.append((self._matchmaker, ActorMessage("ready", report)))

    def _commit(self, number: tuple[int, int]) -> None:
        attempt = self._attempt
        if attempt is not None and attempt.number == number and attempt.exchange.result is not None:
            fields: dict[str, Field] = {"round": number[0], "members": attempt.members}
            self._end(ActorMessage("mean", fields, (attempt.exchange.result,)))
            self._latest = self._outcome

    def _end(self, outcome: ActorMessage) -> None:
        self._outcome, self._own, self._attempt = outcome, None, None


def _number(message: ActorMessage) -> tuple[int, int]:
    return message.number("round"), message.number("attempt")


def members_of(message: ActorMessage) -> list[str]:
    """Return the addresses of the members that a message names."""
    members = message.fields.get("members")
    if not isinstance(members, list):
        raise ContractError(f"a {message.kind!r} names its members' addresses")
    return [str(member) for member in members]

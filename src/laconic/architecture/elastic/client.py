"""A worker's side of elastic rounds: it enters, gives its vector and gets the mean of those who are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from laconic.architecture.elastic.member import members_of
from laconic.errors import Disagreement, WorkerLost
from laconic.worker import ActorMessage, Communication, Handle


@dataclass(frozen=True, eq=False)
class Averaged:
    """A round's outcome for one worker: the mean and the addresses of the members that it is of. A worker that was
    taken for lost keeps its own vector, as the only member."""

    mean: Tensor
    members: tuple[str, ...]


class ElasticClient:
    """Takes part in rounds through the member actor that this worker hosts.

    - `call`: sends a message to an actor, as `Worker.call` and the endpoint of `rpc` do.
    - `member`: the address of this worker's `Member`, another one in each of its lives.
    - `matchmaker`: the address of the `Matchmaker`.
    """

    def __init__(self, call: Callable[[str, ActorMessage, bool], Handle], member: str, matchmaker: str) -> None:
        self._call, self._member, self._matchmaker = call, member, matchmaker
        self.round = self._entry = -1
        self._source = ""

    def enter(self) -> Communication[None]:
        """Become a member from the next round on, which waits for this worker."""
        answer = yield from self._write("enter", address=self._member)
        self.round, self._entry = answer.number("round"), answer.number("entry")
        self._source = str(answer.fields["source"])

    def latest(self) -> Communication[Tensor | None]:
        """Return a member's mean of the round before this worker's first, for one that enters late; None for those
        that are there from the beginning, or alone."""
        while self._source:
            try:
                wanted = ActorMessage("latest", {"round": self.round - 1})
                answer: ActorMessage = yield self._call(self._source, wanted, False)
                if answer.kind == "mean":
                    return answer.tensors[0]
            except WorkerLost:
                pass
            yield from self.enter()  # that member has died or missed the round: be shown another
        return None

    def average(self, flat: Tensor) -> Communication[Averaged]:
        """Take part in the next round with a flat vector, which must not change until then."""
        if self.round < 0:  # for the first time, or after it was taken for lost
            yield from self.enter()
        begin = ActorMessage("begin", {"round": self.round, "entry": self._entry}, (flat,))
        yield self._call(self._member, begin, True)
        outcome = yield from self._write("join", round=self.round)
        if outcome.kind != "expelled":
            outcome = yield self._call(self._member, ActorMessage("outcome"), False)
        if outcome.kind == "expelled":
            self.round = -1
            return Averaged(flat, (self._member,))
        self.round += 1
        return Averaged(outcome.tensors[0], tuple(members_of(outcome)))

    def leave(self) -> Communication[None]:
        """Leave after a round, so that nobody waits for this worker."""
        yield from self._write("leave")

    def _write(self, kind: str, **fields: Any) -> Communication[ActorMessage]:
        """Write to the matchmaker, and return its answer."""
        answer: ActorMessage = yield self._call(self._matchmaker, ActorMessage(kind, fields), True)
        if answer.kind == "refused":
            raise Disagreement(str(answer.fields["why"]))
        return answer

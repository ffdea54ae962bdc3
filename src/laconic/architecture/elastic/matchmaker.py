"""The matchmaker: the one actor that forms groups, repeats a round that lost a member, and commits it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from laconic.architecture.elastic.seats import Arrangement, Seat
from laconic.errors import ContractError
from laconic.worker import ActorMessage


@dataclass
class Group:
    """A group in a round that is not committed yet. An attempt is made by all members that were alive at its
    beginning; `ready` are those who hold its whole result."""

    round: int
    members: list[str]
    attempt: int = 0
    lost: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)

    @property
    def alive(self) -> list[str]:
        return [member for member in self.members if member not in self.lost]


class Matchmaker:
    """Decides who is there, who meets whom, and when a round has succeeded.

    The rule: an attempt at a group's mean is made by all its members that are alive when it begins. It is committed
    when every member that is still alive reports that it holds the whole result; only then do members take it over. A
    member's loss before that begins another attempt without it, from the vectors that the others had at the round's
    beginning; a loss after all others were ready changes nothing, and the lost member's share stays in the mean. So the
    mean is that of the members of the committed attempt, and all who take it over hold the same bits. A member that was
    taken for lost and is not is told so: it keeps its value and enters again.

    The matchmaker must outlive the members, as the launcher's store and server processes do. It is told of losses by
    the heartbeats of `rpc`, or by whoever sees a process end.
    """

    def __init__(self, arrangement: Arrangement, members: Iterable[int] = ()) -> None:
        """Expect these workers from the first round on; others enter when they come."""
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._arrangement = arrangement
        self._seats: dict[int, Seat] = {}
        self._groups: dict[str, Group] = {}  # by member
        self._entries: dict[str, int] = {}  # how often each address has entered
        self._held: dict[str, int] = {}  # the last round whose mean each member has
        self._next = 0  # the first round for which no group has formed
        for rank in members:
            self._seats[rank] = self._new_seat("")

    def write(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.kind == "enter":
            return self._enter(sender, _text(message, "address"))
        if message.kind == "join":
            return self._join(sender, message.number("round"))
        if message.kind == "ready":
            self._note_ready(_text(message, "member"), message.number("round"), message.number("attempt"))
        elif message.kind == "gone":
            self.lose(message.number("worker"))
        elif message.kind == "leave":
            self.lose(sender)
        else:
            raise ContractError(f"a matchmaker takes no {message.kind!r}; write enter, join, ready, gone or leave")
        return ActorMessage("noted")

    def read(self, sender: int, message: ActorMessage) -> ActorMessage:
        """Answer who is there: the addresses of members, in the order of their ranks."""
        return ActorMessage("members", {"addresses": [s.address for _, s in sorted(self._seats.items()) if s.address]})

    def lose(self, sender: int) -> None:
        seat = self._seats.pop(sender, None)
        if seat is None:
            return
        if seat.address:
            self._send([seat.address], "expelled", entry=self._entries[seat.address])
        group = self._groups.pop(seat.address, None)
        if group is not None:
            group.lost.add(seat.address)
            self._go_on(group)
        self._form([r for r, s in self._seats.items() if s.joined and self._arrangement.may_meet(s, seat)])

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        raise ContractError(
            "a matchmaker cannot go on from a snapshot, since members may have acted on what it decided afterwards: "
            "serve it without snapshots, and start the run again from a checkpoint if it is lost"
        )

    # ------------------------------------------------------------------------------------------ members

    def _new_seat(self, address: str) -> Seat:
        return Seat(address, self._arrangement.free_cell({s.cell for s in self._seats.values()}), self._next)

    def _enter(self, rank: int, address: str) -> ActorMessage:
        seat = self._seats.get(rank)
        if seat is not None and seat.address:  # it came back before its silence was noticed
            self.lose(rank)
            seat = None
        source = ""
        if seat is None:
            source = self._source()
            seat = self._seats[rank] = self._new_seat("")
        seat.address = address
        entry = self._entries[address] = self._entries.get(address, 0) + 1
        return ActorMessage("entered", {"round": seat.round, "entry": entry, "source": source})

    def _source(self) -> str:
        """Return a member that has the mean of the newest round that has begun, or will have it; "" for none."""
        if not self._next:
            return ""
        holders = [s.address for s in self._seats.values() if self._held.get(s.address, -1) == self._next - 1]
        coming = [member for member, group in self._groups.items() if group.round == self._next - 1]
        return next(iter([*holders, *coming]), "")

    def _join(self, rank: int, number: int) -> ActorMessage:
        seat = self._seats.get(rank)
        if seat is None or not seat.address or seat.round != number:
            return ActorMessage("expelled")
        seat.joined = True
        self._form([rank])
        return ActorMessage("noted")

    # ------------------------------------------------------------------------------------------ groups

    def _form(self, ranks: Collection[int]) -> None:
        """Form the groups of these members that are complete now, and then those that waited to see where their members
        would be placed."""
        for rank in ranks:
            seat = self._seats[rank]
            if not seat.joined:  # its group has formed in this pass
                continue
            together = self._arrangement.candidates(self._seats, rank)
            seats = [self._seats[other] for other in together]
            if all(other.joined and other.round == seat.round for other in seats):
                since = seat.round if self._arrangement.at_once else seat.round + 1
                self._begin(seats)
                self._form([r for r, s in self._seats.items() if s.joined and s.round >= since])

    def _begin(self, seats: Sequence[Seat]) -> None:
        group = Group(seats[0].round, [seat.address for seat in seats])
        for position, seat in enumerate(seats):
            self._arrangement.place(seat, position)
            seat.round, seat.joined = seat.round + 1, False
            self._groups[seat.address] = group
        self._next = max(self._next, group.round + 1)
        self._announce(group)

    def _announce(self, group: Group) -> None:
        self._send(group.members, "group", round=group.round, attempt=group.attempt, members=list(group.members))

    def _note_ready(self, member: str, number: int, attempt: int) -> None:
        group = self._groups.get(member)
        if group is not None and (group.round, group.attempt) == (number, attempt):
            group.ready.add(member)
            self._commit(group)

    def _commit(self, group: Group) -> bool:
        """Commit the attempt if all members that are alive hold its result."""
        alive = group.alive
        if not alive or not group.ready.issuperset(alive):
            return False
        self._send(alive, "commit", round=group.round, attempt=group.attempt)
        for member in alive:
            del self._groups[member]
            self._held[member] = group.round
        return True

    def _go_on(self, group: Group) -> None:
        """Go on without a member that is lost: as if nothing had happened where all others are ready, otherwise by
        another attempt of those who are left."""
        if group.alive and not self._commit(group):
            group.members, group.attempt = group.alive, group.attempt + 1
            group.ready = set()
            self._announce(group)

    def _send(self, to: Iterable[str], kind: str, **fields: Any) -> None:
        self.outgoing += [(member, ActorMessage(kind, fields)) for member in to]


def _text(message: ActorMessage, name: str) -> str:
    value = message.fields.get(name)
    if not isinstance(value, str) or not value:
        raise ContractError(f"a {message.kind!r} names a {name}, which is no {value!r}")
    return value

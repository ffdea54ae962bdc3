"""What one server answers: the letters every rule shares, and the rule's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.server.changes import Meetings, DeltaEncoder
from laconic.architecture.server.point_to_point import decode_all, encode_all
from laconic.architecture.server.store import Store
from laconic.compression.base import Compressor
from laconic.errors import ContractError, Disagreement
from laconic.worker import ActorMessage, Field


@dataclass(frozen=True, eq=False)
class Push:
    """One worker's message to one shard, decoded: a tensor per range.

    `version` is what the worker had read when it computed this; `clock` counts its pushes, this one included.
    """

    worker: int
    clock: int
    version: int
    tensors: list[Tensor]
    fields: Mapping[str, Field]


@dataclass(frozen=True, eq=False)
class Pull:
    """A worker's wish to read one shard, at its clock."""

    worker: int
    clock: int
    fields: Mapping[str, Field]


class ServerRule:
    """The server's half of a sync rule; these are the answers of a plain asynchronous server."""

    def groups_of(self, size: int) -> list[list[int]]:
        """Who shares a server of the whole model: one for all, unless the rule divides the workers."""
        return [list(range(size))]

    def open(self, store: Store) -> None:
        """Before anything is received: what the rule remembers on the server."""

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        """Take an update in; what is returned the worker finds in its receipt."""
        raise ContractError(f"{type(self).__name__} takes no pushes")

    def told(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        """A worker, of this group or another, reports something: no update, and no tick of its clock."""

    def readable(self, store: Store, pull: Pull) -> bool:
        """Whether this read has an answer now."""
        return True

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        """What a read brings beside the version: fields, and tensors other than the values where there are any."""
        return {}, None

    def lost(self, store: Store, worker: int) -> None:
        """A worker is gone, or has pushed for the last time; what it was told is taken in stays."""

    def relay(self, store: Store) -> RelayedPush | None:
        """What the servers of other groups must hear, after a push."""
        return None

    def relayed(self, store: Store, relay: RelayedPush) -> None:
        """Another group's server has said something; each thing once, in its order."""


@dataclass(frozen=True, eq=False)
class RelayedPush:
    """From one group's server to the others': its how-manieth, with a tensor per range."""

    group: int
    turn: int
    tensors: Sequence[Tensor]


class Shard:
    """One server as a machine: joins, first values, aggregation among all, and the rule's pushes and pulls.

    Reads of one version share one copy of the values. A worker that was lost and speaks again is a member again.
    """

    def __init__(
        self,
        store: Store,
        rule: ServerRule,
        compressor: Compressor,
        meetings: Meetings,
        digest: str,
        others: Sequence[str] = (),
        down: Compressor | None = None,
    ) -> None:
        self.store, self.rule = store, rule
        self.outgoing: list[tuple[str, ActorMessage]] = []
        self._others = others  # the same shard of other groups
        self._down = down  # what reads go through
        self._readers = None if down is None or down.wire else DeltaEncoder(down, store.specs, meetings)
        self._heard: dict[int, int] = {}  # by group: how much of what it said
        self._compressor, self._meetings, self._digest = compressor, meetings, digest
        self._rounds: dict[int, tuple[str, dict[int, list[Tensor]]]] = {}  # what to do, with what each member brought
        self._results: dict[int, tuple[list[Tensor], int]] = {}  # what came out, of how many
        self._open = 0  # no round from here on has a result yet; of those before, urgent ones may have overtaken some
        self._forgotten = 0  # rounds before this one were collected by all
        self._from: dict[int, int] = {}  # by member that came later: the first round it takes part in
        self._collected: dict[int, int] = {}  # by member: it has the results of all rounds before this one
        self._published: tuple[int, Mapping[str, Field], tuple[Tensor, ...]] | None = None
        self.rule.open(store)

    # ------------------------------------------------------------------------------------------ writes

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if message.kind in ("push", "relay") and not self.store.planted:
            return None  # a server that starts from nothing hears again what it was told: the first values come first
        if message.kind in ("join", "push", "contribute") and sender not in self.store.clocks:
            self.store.clocks[sender] = self.store.slowest  # who comes later has no past to wait for
            self._from[sender] = _NOT_YET
        answer: dict[str, Callable[[int, ActorMessage], ActorMessage]] = {
            "join": self._join,
            "begin": self._begin,
            "plant": self._plant,
            "push": self._push,
            "tell": self._told,
            "rest": self._rest,
            "contribute": self._contribute,
            "leave": self._leave,
            "relay": self._relayed,
        }
        if message.kind not in answer:
            raise ContractError(f"a parameter server knows no letter of the kind {message.kind!r}")
        return answer[message.kind](sender, message)

    def _join(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.fields.get("digest") != self._digest:
            raise Disagreement(
                f"worker {sender} does not run what this server runs: another model, optimizer, strategy or version. "
                "Start workers and servers with the same script and arguments"
            )
        return ActorMessage("welcome", {"clock": self.store.clocks[sender], "round": self._from.get(sender, 0)})

    def _begin(self, sender: int, message: ActorMessage) -> ActorMessage:
        """From this round on the others wait for this worker, too; or from the next one that is still open here."""
        self._from[sender] = max(message.number("round"), self._open)
        self._collected[sender] = self._from[sender]
        self._complete()
        return ActorMessage("receipt", {"round": self._from[sender]})

    def _plant(self, sender: int, message: ActorMessage) -> ActorMessage:
        if not self.store.planted:
            self.store.set(self._views(message))
            self.store.planted = True
            self._published = None
        return ActorMessage("planted")

    def _push(self, sender: int, message: ActorMessage) -> ActorMessage:
        store, fields = self.store, message.fields
        version, tensors = (
            message.number("version", 0),
            self._decoded(sender, message),
        )  # refused before anything changes
        store.scalars.setdefault(sender, {}).update(_scalars(fields))
        if sender in store.resting:  # it goes on after all, and nobody is to wait until it has caught up
            store.clocks[sender] = max(store.clocks[sender], store.slowest)
            store.resting.remove(sender)
        clock = store.clocks[sender] = max(store.clocks[sender] + 1, message.number("clock", 0))
        push = Push(sender, clock, version, tensors, fields)
        before = store.version
        receipt = {"clock": clock, "version": before, **self.rule.receive(store, push)}
        if store.version != before:
            self._published = None
        relay = self.rule.relay(store)
        if relay is not None:
            told = ActorMessage(
                "relay", {"group": relay.group, "turn": relay.turn}, tuple(store.flattened(relay.tensors))
            )
            self.outgoing += [(address, told) for address in self._others]
        return ActorMessage("receipt", receipt)

    def _relayed(self, sender: int, message: ActorMessage) -> ActorMessage:
        """A server that was restarted may say again what it said before."""
        group, turn = message.number("group"), message.number("turn")
        if turn > self._heard.get(group, 0):
            self._heard[group] = turn
            self.rule.relayed(self.store, RelayedPush(group, turn, self._views(message)))
            self._published = None
        return ActorMessage("receipt")

    def _told(self, sender: int, message: ActorMessage) -> ActorMessage:
        self.rule.told(self.store, sender, message.fields)
        return ActorMessage("receipt")

    def _rest(self, sender: int, message: ActorMessage) -> ActorMessage:
        """Its steps are made; it may still meet the others in what all add up."""
        if sender in self.store.clocks:
            self.store.resting.add(sender)
            self.rule.lost(self.store, sender)
        return ActorMessage("receipt")

    def _decoded(self, sender: int, message: ActorMessage) -> list[Tensor]:
        """Tensors that were compressed travel as so many words each; all others, of one dtype, as one."""
        if "words" not in message.fields:
            return self._views(message) if message.tensors else []
        meeting = partial(self._meetings, sender, message.number("step", 0))
        return decode_all(self._compressor, self.store.specs, message, meeting)

    def _views(self, message: ActorMessage) -> list[Tensor]:
        """A letter's tensors as this shard's ranges, if that is what they are."""
        flats = self.store.flats.items()
        given = [(tensor.dtype, tensor.numel()) for tensor in message.tensors]
        if given != [(dtype, flat.numel()) for dtype, flat in flats]:
            raise ContractError(f"a {message.kind} of {given} does not fit this shard")
        return self.store.views(message.tensors)

    def _contribute(self, sender: int, message: ActorMessage) -> ActorMessage:
        turn, op = message.number("round"), str(message.fields.get("op"))
        if op not in _COMBINE:
            raise ContractError(f"a server sums, takes maxima or gathers, not {op!r}")
        if turn >= self._forgotten and turn not in self._results:
            self._rounds.setdefault(turn, (op, {}))[1][sender] = list(message.tensors)
        self._collected[sender] = max(self._collected.get(sender, 0), message.number("collected"))
        self.store.clocks[sender] += 1
        self._complete()
        return ActorMessage("receipt")

    def _leave(self, sender: int, message: ActorMessage) -> ActorMessage:
        self.lose(sender)
        return ActorMessage("goodbye")

    def lose(self, sender: int) -> None:
        self.store.clocks.pop(sender, None)
        self.store.resting.discard(sender)
        if self._readers is not None:
            self._readers.forget(sender)
        self._collected.pop(sender, None)
        self._from.pop(sender, None)
        self.rule.lost(self.store, sender)
        self._complete()

    def _complete(self) -> None:
        """Combine the rounds to which all members have brought something, in the order of their ranks; forget those
        that all members have collected."""
        for turn, (op, brought) in sorted(self._rounds.items()):
            if all(member in brought for member in self.store.clocks if self._from.get(member, 0) <= turn):
                del self._rounds[turn]
                self._open = max(self._open, turn + 1)
                self._results[turn] = (_COMBINE[op]([brought[w] for w in sorted(brought)]), len(brought))
        everywhere = min((self._collected.get(member, 0) for member in self.store.clocks), default=0)
        self._forgotten = max(self._forgotten, everywhere)
        self._results = {turn: result for turn, result in self._results.items() if turn >= self._forgotten}

    # ------------------------------------------------------------------------------------------ reads

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        if not self.store.planted:
            return None
        if message.kind == "collect":
            return self._collect(message)
        clock = self.store.clocks.get(sender, self.store.slowest)
        pull = Pull(sender, clock, message.fields)
        fields: Mapping[str, Field] = {}
        tensors: Sequence[Tensor] | None = None
        if message.kind != "peek":
            if not self.rule.readable(self.store, pull):
                return None
            fields, tensors = self.rule.view(self.store, pull)
        found = {"version": self.store.version, "clock": clock, "slowest": self.store.slowest, **fields}
        if tensors is not None:
            return ActorMessage("values", found, tuple(tensors))
        if self._readers is not None:
            words, values = self._readers.answer(sender, message.number("reads", 0), self.store.values)
        else:
            words, values = self._values()
        return ActorMessage("values", {**found, **words}, values)

    def _values(self) -> tuple[Mapping[str, Field], tuple[Tensor, ...]]:
        """As they are now, the same for all who read this version."""
        version = self.store.version
        if self._published is None or self._published[0] != version:
            self._published = (version, *self._said(version))
        return self._published[1:]

    def _said(self, version: int) -> tuple[Mapping[str, Field], tuple[Tensor, ...]]:
        if self._down is None:
            return {}, tuple(self.store.flat_copy())
        values = [value.detach().clone() for value in self.store.values]
        return encode_all(self._down, self.store.specs, values, {}, partial(self._meetings, -1, version))

    def _collect(self, message: ActorMessage) -> ActorMessage | None:
        found = self._results.get(message.number("round"))
        return None if found is None else ActorMessage("sum", {"members": found[1]}, tuple(found[0]))

    # ------------------------------------------------------------------------------------------ saving

    def state(self) -> dict[str, Any]:
        return {
            "store": self.store.state(list(self._values()[1]) if self._down is None else None),  # readers' copy will do
            "rounds": {str(t): [op, {str(w): list(x) for w, x in b.items()}] for t, (op, b) in self._rounds.items()},
            "results": {str(t): [list(x), members] for t, (x, members) in self._results.items()},
            "collected": {str(w): turn for w, turn in self._collected.items()},
            "open": self._open,
            "forgotten": self._forgotten,
            "from": {str(w): turn for w, turn in self._from.items()},
            "heard": {str(g): turn for g, turn in self._heard.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.store.restore(state["store"])
        self._published = None
        self._rounds = {int(t): (op, {int(w): list(x) for w, x in b.items()}) for t, (op, b) in state["rounds"].items()}
        self._results = {int(t): (list(x), members) for t, (x, members) in state["results"].items()}
        self._collected = {int(w): turn for w, turn in state["collected"].items()}
        self._open, self._forgotten = state["open"], state["forgotten"]
        self._from = {int(w): turn for w, turn in state["from"].items()}
        self._heard = {int(g): turn for g, turn in state["heard"].items()}


_NOT_YET = 1 << 62
"""The first round of a worker that has joined and not begun."""


def _summed(contributions: list[list[Tensor]]) -> list[Tensor]:
    first, *others = contributions
    totals = [x.clone() for x in first]
    for other in others:
        for total, x in zip(totals, other, strict=True):
            total += x
    return totals


def _greatest(contributions: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(parts).amax(0) for parts in zip(*contributions, strict=True)]


def _gathered(contributions: list[list[Tensor]]) -> list[Tensor]:
    """All of them, one member's after another's."""
    return [x for contribution in contributions for x in contribution]


_COMBINE: dict[str, Callable[[list[list[Tensor]]], list[Tensor]]] = {
    "sum": _summed,
    "max": _greatest,
    "gather": _gathered,
}


def _scalars(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Settings of the worker's optimizer that have changed, which travel as `set.GROUP.NAME`."""
    return {name.removeprefix("set."): value for name, value in fields.items() if name.startswith("set.")}

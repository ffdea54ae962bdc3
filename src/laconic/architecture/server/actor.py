"""One shard as an actor: it answers the messages that every sync rule uses, and leaves the rest to the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from laconic.architecture.server.compressed_reads import DeltaEncoder, Meetings
from laconic.architecture.server.point_to_point import decode_all, encode_all
from laconic.architecture.server.store import Store
from laconic.compression.base import Compressor
from laconic.compression.optional import wire_of
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
    """A worker's request to read one shard, with its clock."""

    worker: int
    clock: int
    fields: Mapping[str, Field]


class ServerRule:
    """The server's half of a sync rule; the defaults are those of a plain asynchronous server."""

    def groups_of(self, size: int) -> list[list[int]]:
        """Return the groups of workers that share a server of the whole model: one, unless the rule divides the
        workers."""
        return [list(range(size))]

    def open(self, store: Store) -> None:
        """Prepare what the rule remembers on the server, before anything is received."""

    def receive(self, store: Store, push: Push) -> Mapping[str, Field]:
        """Apply an update; the worker finds what is returned in its receipt."""
        raise ContractError(f"{type(self).__name__} accepts no pushes")

    def receive_report(self, store: Store, worker: int, fields: Mapping[str, Field]) -> None:
        """Take in a report of a worker, of this group or another, which is no update and does not advance its clock."""

    def readable(self, store: Store, pull: Pull) -> bool:
        """Tell whether this read can be answered now; otherwise it waits."""
        return True

    def view(self, store: Store, pull: Pull) -> tuple[Mapping[str, Field], Sequence[Tensor] | None]:
        """Return what a read answers beside the version: fields, and tensors in place of the values where there are
        any."""
        return {}, None

    def lost(self, store: Store, worker: int) -> None:
        """Note that a worker is gone or has pushed for the last time; its acknowledged updates stay."""

    def relay(self, store: Store) -> RelayedPush | None:
        """Return what to send to the servers of other groups after a push, if anything."""
        return None

    def receive_relay(self, store: Store, relay: RelayedPush) -> None:
        """Apply what another group's server has sent; each relay arrives once, in order."""


@dataclass(frozen=True, eq=False)
class RelayedPush:
    """What one group's server sends to the others': numbered from 1, with a tensor per range."""

    group: int
    number: int
    tensors: Sequence[Tensor]


class Shard:
    """One shard of a parameter server: joins, first values, aggregation among all, and the rule's pushes and pulls.

    Reads of one version share one copy of the values. A worker that was lost and sends again is a member again.
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
        self._down = down  # the compressor of what is read
        self._delta_encoder = None if down is None or wire_of(down) else DeltaEncoder(down, store.specs, meetings)
        self._last_relay: dict[int, int] = {}  # by group: the number of its last relay
        self._compressor, self._meetings, self._digest = compressor, meetings, digest
        self._rounds: dict[int, tuple[str, dict[int, list[Tensor]]]] = {}  # the operation, and contributions by member
        self._results: dict[int, tuple[list[Tensor], int]] = {}  # the result, and the number of contributions
        self._open = 0  # no round from here on has a result yet; before it, urgent rounds may have overtaken others
        self._forgotten = 0  # rounds before this one were collected by all
        self._from: dict[int, int] = {}  # by member that joined late: the first round it takes part in
        self._collected: dict[int, int] = {}  # by member: it has the results of all rounds before this one
        self._published: tuple[int, Mapping[str, Field], tuple[Tensor, ...]] | None = None
        self.rule.open(store)

    # ------------------------------------------------------------------------------------------ writes

    def write(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        """Apply a write and return its answer; None if it cannot be applied yet."""
        if message.kind in ("push", "relay") and not self.store.initialized:
            return None  # not accepted yet: a server that restarts without a snapshot needs its first values first
        if message.kind in ("join", "push", "contribute") and sender not in self.store.clocks:
            self.store.clocks[sender] = self.store.slowest  # who joins late need not catch up
            self._from[sender] = _NOT_YET
        answer: dict[str, Callable[[int, ActorMessage], ActorMessage]] = {
            "join": self._join,
            "begin": self._begin,
            "plant": self._initialize,
            "push": self._push,
            "tell": self._report,
            "rest": self._pause,
            "contribute": self._contribute,
            "leave": self._leave,
            "relay": self._receive_relay,
        }
        if message.kind not in answer:
            raise ContractError(f"a parameter server knows no message of the kind {message.kind!r}")
        return answer[message.kind](sender, message)

    def _join(self, sender: int, message: ActorMessage) -> ActorMessage:
        if message.fields.get("digest") != self._digest:
            raise Disagreement(
                f"worker {sender} does not run what this server runs: another model, optimizer, strategy or version. "
                "Start workers and servers with the same script and arguments"
            )
        return ActorMessage("welcome", {"clock": self.store.clocks[sender], "round": self._from.get(sender, 0)})

    def _begin(self, sender: int, message: ActorMessage) -> ActorMessage:
        """Let the others wait for this worker from this round on, or from the first that is still open here."""
        self._from[sender] = max(message.number("round"), self._open)
        self._collected[sender] = self._from[sender]
        self._complete()
        return ActorMessage("receipt", {"round": self._from[sender]})

    def _initialize(self, sender: int, message: ActorMessage) -> ActorMessage:
        if not self.store.initialized:
            self.store.set(self._views(message))
            self.store.initialized = True
            self._published = None
        return ActorMessage("planted")

    def _push(self, sender: int, message: ActorMessage) -> ActorMessage:
        store, fields = self.store, message.fields
        version, tensors = (
            message.number("version", 0),
            self._decode(sender, message),
        )  # refused before anything changes
        store.scalars.setdefault(sender, {}).update(_scalars(fields))
        if sender in store.paused:  # it pushes again, and nobody is to wait until it has caught up
            store.clocks[sender] = max(store.clocks[sender], store.slowest)
            store.paused.remove(sender)
        clock = store.clocks[sender] = max(store.clocks[sender] + 1, message.number("clock", 0))
        push = Push(sender, clock, version, tensors, fields)
        before = store.version
        receipt = {"clock": clock, "version": before, **self.rule.receive(store, push)}
        if store.version != before:
            self._published = None
        relay = self.rule.relay(store)
        if relay is not None:
            relayed = ActorMessage(
                "relay", {"group": relay.group, "turn": relay.number}, tuple(store.flattened(relay.tensors))
            )
            self.outgoing += [(address, relayed) for address in self._others]
        return ActorMessage("receipt", receipt)

    def _receive_relay(self, sender: int, message: ActorMessage) -> ActorMessage:
        """Apply a relay, unless a restarted server sends it again."""
        group, number = message.number("group"), message.number("turn")
        if number > self._last_relay.get(group, 0):
            self._last_relay[group] = number
            self.rule.receive_relay(self.store, RelayedPush(group, number, self._views(message)))
            self._published = None
        return ActorMessage("receipt")

    def _report(self, sender: int, message: ActorMessage) -> ActorMessage:
        self.rule.receive_report(self.store, sender, message.fields)
        return ActorMessage("receipt")

    def _pause(self, sender: int, message: ActorMessage) -> ActorMessage:
        """Stop waiting for this worker's pushes; it may still take part in aggregations."""
        if sender in self.store.clocks:
            self.store.paused.add(sender)
            self.rule.lost(self.store, sender)
        return ActorMessage("receipt")

    def _decode(self, sender: int, message: ActorMessage) -> list[Tensor]:
        """Decode a push: compressed tensors are several payload tensors each, all others are one flat tensor per
        dtype."""
        if "words" not in message.fields:
            return self._views(message) if message.tensors else []
        meeting = partial(self._meetings, sender, message.number("step", 0))
        return decode_all(self._compressor, self.store.specs, message, meeting)

    def _views(self, message: ActorMessage) -> list[Tensor]:
        """Return a message's tensors as this shard's ranges, if their dtypes and lengths fit."""
        flats = self.store.flats.items()
        given = [(tensor.dtype, tensor.numel()) for tensor in message.tensors]
        if given != [(dtype, flat.numel()) for dtype, flat in flats]:
            raise ContractError(f"a {message.kind} of {given} does not fit this shard")
        return self.store.views(message.tensors)

    def _contribute(self, sender: int, message: ActorMessage) -> ActorMessage:
        number, op = message.number("round"), str(message.fields.get("op"))
        if op not in _COMBINE:
            raise ContractError(f"a server sums, takes maxima or gathers, not {op!r}")
        if number >= self._forgotten and number not in self._results:
            self._rounds.setdefault(number, (op, {}))[1][sender] = list(message.tensors)
        self._collected[sender] = max(self._collected.get(sender, 0), message.number("collected"))
        self.store.clocks[sender] += 1
        self._complete()
        return ActorMessage("receipt")

    def _leave(self, sender: int, message: ActorMessage) -> ActorMessage:
        self.lose(sender)
        return ActorMessage("goodbye")

    def lose(self, sender: int) -> None:
        """Remove a worker, so that no round and no rule waits for it."""
        self.store.clocks.pop(sender, None)
        self.store.paused.discard(sender)
        if self._delta_encoder is not None:
            self._delta_encoder.forget(sender)
        self._collected.pop(sender, None)
        self._from.pop(sender, None)
        self.rule.lost(self.store, sender)
        self._complete()

    def _complete(self) -> None:
        """Combine the rounds to which all members have contributed, in the order of their ranks; forget those that all
        members have collected."""
        for number, (op, contributions) in sorted(self._rounds.items()):
            if all(member in contributions for member in self.store.clocks if self._from.get(member, 0) <= number):
                del self._rounds[number]
                self._open = max(self._open, number + 1)
                self._results[number] = (
                    _COMBINE[op]([contributions[w] for w in sorted(contributions)]),
                    len(contributions),
                )
        everywhere = min((self._collected.get(member, 0) for member in self.store.clocks), default=0)
        self._forgotten = max(self._forgotten, everywhere)
        self._results = {number: result for number, result in self._results.items() if number >= self._forgotten}

    # ------------------------------------------------------------------------------------------ reads

    def read(self, sender: int, message: ActorMessage) -> ActorMessage | None:
        """Answer a read; None if it has to wait."""
        if not self.store.initialized:
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
        if self._delta_encoder is not None:
            encoding, values = self._delta_encoder.encode(sender, message.number("reads", 0), self.store.values)
        else:
            encoding, values = self._values()
        return ActorMessage("values", {**found, **encoding}, values)

    def _values(self) -> tuple[Mapping[str, Field], tuple[Tensor, ...]]:
        """Return the encoded values, the same for all who read this version."""
        version = self.store.version
        if self._published is None or self._published[0] != version:
            self._published = (version, *self._encode_values(version))
        return self._published[1:]

    def _encode_values(self, version: int) -> tuple[Mapping[str, Field], tuple[Tensor, ...]]:
        if self._down is None:
            return {}, tuple(self.store.flat_copy())
        values = [value.detach().clone() for value in self.store.values]
        return encode_all(self._down, self.store.specs, values, {}, partial(self._meetings, -1, version))

    def _collect(self, message: ActorMessage) -> ActorMessage | None:
        found = self._results.get(message.number("round"))
        return None if found is None else ActorMessage("sum", {"members": found[1]}, tuple(found[0]))

    # ------------------------------------------------------------------------------------------ saving

    def state(self) -> dict[str, Any]:
        """Return everything that a snapshot needs, as plain data and tensors."""
        return {
            "store": self.store.state(list(self._values()[1]) if self._down is None else None),  # readers share a copy
            "rounds": {str(t): [op, {str(w): list(x) for w, x in b.items()}] for t, (op, b) in self._rounds.items()},
            "results": {str(t): [list(x), members] for t, (x, members) in self._results.items()},
            "collected": {str(w): number for w, number in self._collected.items()},
            "open": self._open,
            "forgotten": self._forgotten,
            "from": {str(w): number for w, number in self._from.items()},
            "heard": {str(g): number for g, number in self._last_relay.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a saved state."""
        self.store.restore(state["store"])
        self._published = None
        self._rounds = {int(t): (op, {int(w): list(x) for w, x in b.items()}) for t, (op, b) in state["rounds"].items()}
        self._results = {int(t): (list(x), members) for t, (x, members) in state["results"].items()}
        self._collected = {int(w): number for w, number in state["collected"].items()}
        self._open, self._forgotten = state["open"], state["forgotten"]
        self._from = {int(w): number for w, number in state["from"].items()}
        self._last_relay = {int(g): number for g, number in state["heard"].items()}


_NOT_YET = 1 << 62
"""The first round of a worker that has joined and not yet begun to take part."""


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
    """Return all tensors, one member's after another's."""
    return [x for contribution in contributions for x in contribution]


_COMBINE: dict[str, Callable[[list[list[Tensor]]], list[Tensor]]] = {
    "sum": _summed,
    "max": _greatest,
    "gather": _gathered,
}


def _scalars(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Settings of the worker's optimizer that have changed, which are sent as `set.GROUP.NAME`."""
    return {name.removeprefix("set."): value for name, value in fields.items() if name.startswith("set.")}

"""The worker's client of a parameter server: separate pushes and pulls, over all shards at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.architecture.server.compressed_reads import DeltaDecoder, Meetings
from laconic.architecture.server.point_to_point import decode_all, encode_all
from laconic.architecture.server.replicas import Replicas
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import scalars_of
from laconic.compression.base import Compressor, State
from laconic.compression.optional import wire_of
from laconic.errors import Disagreement
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage, Communication, Field, Handle, Priority, Worker, whole


@dataclass(frozen=True, eq=False)
class Receipt:
    """The fields with which the shards answered a push, in the order of the shards."""

    fields: tuple[Mapping[str, Field], ...]


@dataclass(frozen=True, eq=False)
class Pulled:
    """The result of a pull: a tensor per parameter, and the fields of the shards' answers."""

    tensors: list[Tensor]
    fields: tuple[Mapping[str, Field], ...]

    def lowest(self, name: str) -> int:
        """Return the least value of a number that every shard's answer has."""
        return min(whole(fields, name) for fields in self.fields)


class Answers:
    """Several messages in flight as one handle, whose result combines their answers."""

    def __init__(self, handles: Sequence[Handle], combine: Callable[[list[ActorMessage]], Any]) -> None:
        self._handles, self._combine = handles, combine

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def wait(self) -> Any:
        messages: list[ActorMessage] = [handle.wait() for handle in self._handles]
        for message in messages:
            if message.kind == "refused":
                raise Disagreement(str(message.fields["why"]))
        return self._combine(messages)


def _receipt(messages: list[ActorMessage]) -> Receipt:
    return Receipt(tuple(message.fields for message in messages))


@dataclass(eq=False)
class ServerClient:
    """One worker's view of all shards of one model.

    Pushes carry the version that was read last, so that the server can tell their age, and settings of the optimizer's
    groups that have changed since the last one, so that schedules on workers govern steps on servers.
    """

    worker: Worker
    groups: Sequence[Sequence[Replicas]]  # each group's shards
    group: int
    ranges: Sequence[Range]
    specs: Sequence[TensorSpec]
    compressor: Compressor
    meetings: Meetings
    size: int  # of all workers together
    optimizer: Optimizer | None = None
    memory: dict[str, State] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    clock: int = 0  # pushes so far, counted from the slowest member's clock at the start; every shard counts the same
    round: int = 0  # of aggregations among all workers
    _collected_below: int = 0
    _collected: set[int] = field(default_factory=set)
    _sent_settings: dict[str, Any] = field(default_factory=dict)

    down: Compressor | None = None  # the compressor of what the servers send

    @property
    def shards(self) -> Sequence[Replicas]:
        """The shards of this worker's group."""
        return self.groups[self.group]

    def __post_init__(self) -> None:
        self.versions = self.versions or [0] * len(self.shards)
        self._by_shard = [[r for r in self.ranges if r.shard == k] for k in range(len(self.shards))]
        self._delta_decoders: dict[tuple[int, int], DeltaDecoder] = {}

    # ------------------------------------------------------------------------------------------ for rules

    def push(
        self,
        tensors: Sequence[Tensor],
        step: int = 0,
        exact: bool = False,
        versions: Sequence[int] | None = None,
        settings: Mapping[str, Field] | None = None,
        **fields: Any,
    ) -> Answers:
        """Send one tensor per parameter, compressed unless `exact`; the receipt tells when the servers have applied it.

        `versions` are those of the values it was computed with, where these are not the ones read last; `settings` are
        for the server's optimizer, as `set.GROUP.NAME`, in place of the worker's own.
        """
        changed = {**self._changed_settings(), **(settings or {})}
        versions = self.versions if versions is None else versions
        self.clock += 1
        sent = []
        for shard, (k, version) in zip(self.shards, enumerate(versions), strict=True):
            encoding, payload = self._encode(tensors, k, step, exact)
            header = {"version": version, "clock": self.clock, "step": step, **changed, **encoding, **fields}
            sent.append(shard.write(ActorMessage("push", header, payload)))
        return Answers(sent, _receipt)

    def report(self, only: int | None = None, group: int | None = None, **fields: Any) -> Answers:
        """Send fields without tensors to the rule on the servers; to another group's server where that coordinates."""
        shards = self.groups[self.group if group is None else group]
        sent = [shards[k].write(ActorMessage("tell", fields)) for k in self._chosen(only)]
        return Answers(sent, _receipt)

    def pull(self, only: int | None = None, group: int | None = None, **fields: Any) -> Answers:
        """Read the values, as soon as the rule allows this worker to."""
        group = self.group if group is None else group
        reads = [
            self.groups[group][k].read(ActorMessage("pull", {**self._read_count(group, k), **fields}))
            for k in self._chosen(only)
        ]

        def combine(messages: list[ActorMessage]) -> Pulled:
            if only is not None:
                return Pulled(list(messages[0].tensors), (messages[0].fields,))
            if not any(message.tensors for message in messages):  # the rule answered with fields only
                return Pulled([], tuple(message.fields for message in messages))
            return self._values(messages, group)

        return Answers(reads, combine)

    # ------------------------------------------------------------------------------------------ for the engine

    def join(self, digest: str, values: Sequence[Tensor] | None) -> Communication[None]:
        """Become a member; the worker that has `values` sends the servers of all groups their first ones."""
        self._digest = digest
        messages = [shard.write(ActorMessage("join", {"digest": digest})) for shard in self.shards]
        (welcomes,) = yield [Answers(messages, lambda answers: answers)]
        self.clock = max(welcome.number("clock") for welcome in welcomes)
        if any(welcome.number("round") for welcome in welcomes):
            yield from self._begin()
        if values is not None:
            parts = [self._flat(values, k) for k in range(len(self.shards))]
            writes = [
                shard.write(ActorMessage("plant", {}, part))
                for shards in self.groups
                for shard, part in zip(shards, parts, strict=True)
            ]
            yield [Answers(writes, lambda answers: None)]

    def _begin(self) -> Communication[None]:
        """Agree with all shards on the first round of aggregation in which this late worker takes part."""
        rounds = {-1, 0}
        while len(rounds) > 1:
            message = ActorMessage("begin", {"round": max(rounds)})
            (answers,) = yield [Answers([shard.write(message) for shard in self.shards], lambda answers: answers)]
            rounds = {answer.number("round") for answer in answers}
        self.round = self._collected_below = rounds.pop()

    def move(self, group: int) -> Communication[None]:
        """Leave this worker's group and join another."""
        if group != self.group:
            yield from self.leave()
            self.group, self.versions = group, [0] * len(self.shards)
            yield from self.join(self._digest, None)

    def pull_now(self) -> Answers:
        """Read the present values at once, whatever the rule allows."""
        group = self.group
        reads = [shard.read(ActorMessage("peek", self._read_count(group, k))) for k, shard in enumerate(self.shards)]
        return Answers(reads, lambda messages: self._values(messages, group))

    def pause_pushes(self) -> None:
        """Announce that this worker pushes nothing for now, so that no rule waits for it."""
        for shard in self.shards:
            shard.write(ActorMessage("rest"))

    def leave(self) -> Communication[None]:
        """Leave the servers, so that no rule waits for this worker."""
        messages = [shard.write(ActorMessage("leave")) for shard in self.shards]
        yield [Answers(messages, lambda answers: None)]

    def aggregate(
        self,
        parts: Sequence[tuple[Tensor, ...]],
        op: str,
        only: int | None = None,
        priority: Priority | None = None,
    ) -> Communication[list[ActorMessage]]:
        """Send a part to each shard (or to one), and collect the combined parts of all members.

        Rounds are numbered in the order of the calls, which is the same on all workers; the order in which parts are
        sent may differ between workers.
        """
        number, self.round = self.round, self.round + 1
        fields: dict[str, Field] = {"round": number, "op": op, "collected": self._collected_below}
        shards = self._chosen(only)
        for k, part in zip(shards, parts, strict=True):
            self.shards[k].write(ActorMessage("contribute", fields, part), priority)
        reads = [self.shards[k].read(ActorMessage("collect", {"round": number})) for k in shards]
        messages: list[ActorMessage] = yield Answers(reads, lambda answers: answers)
        self._collected.add(number)
        while self._collected_below in self._collected:
            self._collected.remove(self._collected_below)
            self._collected_below += 1
        return messages

    # ------------------------------------------------------------------------------------------ inside

    def _chosen(self, only: int | None) -> list[int]:
        return list(range(len(self.shards))) if only is None else [only]

    def _slices(self, tensors: Sequence[Tensor], k: int) -> list[Tensor]:
        return [tensors[r.tensor].reshape(-1)[r.start : r.stop] for r in self._by_shard[k]]

    def _flat(self, tensors: Sequence[Tensor], k: int) -> tuple[Tensor, ...]:
        """Return a shard's part of the tensors, one new flat tensor per dtype."""
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for r, part in zip(self._by_shard[k], self._slices(tensors, k), strict=True):
            by_dtype.setdefault(self.specs[r.tensor].dtype, []).append(part.detach())
        return tuple(torch.cat(parts) if len(parts) > 1 else parts[0].clone() for parts in by_dtype.values())

    def _encode(
        self, tensors: Sequence[Tensor], k: int, step: int, exact: bool
    ) -> tuple[dict[str, Field], tuple[Tensor, ...]]:
        specs = [r.spec(self.specs) for r in self._by_shard[k]]
        if exact or not any(map(self.compressor.accepts, specs)):
            return {}, self._flat(tensors, k)
        parts = [x.detach().clone().view(s.shape) for s, x in zip(specs, self._slices(tensors, k), strict=True)]
        meeting = partial(self.meetings, self.worker.rank, step)
        return encode_all(self.compressor, specs, parts, self.memory, meeting)

    def _values(self, messages: list[ActorMessage], group: int) -> Pulled:
        """Assemble the values of all shards, and remember their versions, with which the next push is computed."""
        self.versions = [message.number("version") for message in messages]
        whole = [torch.empty(spec.numel, dtype=spec.dtype) for spec in self.specs]
        for k, (ranges, message) in enumerate(zip(self._by_shard, messages, strict=True)):
            for r, part in zip(ranges, self._parts(group, k, message), strict=True):
                whole[r.tensor][r.start : r.stop] = part.reshape(-1)
        tensors = [x.view(spec.shape) for x, spec in zip(whole, self.specs, strict=True)]
        return Pulled(tensors, tuple(message.fields for message in messages))

    def _parts(self, group: int, k: int, message: ActorMessage) -> list[Tensor]:
        """Decode a shard's answer into one tensor per range."""
        if self.down is not None and "reads" in message.fields:
            return self._delta_decoder(group, k).decode(message)
        specs = [r.spec(self.specs) for r in self._by_shard[k]]
        if self.down is not None and "words" in message.fields:
            return decode_all(self.down, specs, message, partial(self.meetings, -1, message.number("version")))
        lengths = {flat.dtype: [s.numel for s in specs if s.dtype == flat.dtype] for flat in message.tensors}
        parts = {flat.dtype: iter(flat.split(lengths[flat.dtype])) for flat in message.tensors}
        return [next(parts[spec.dtype]) for spec in specs]

    def _delta_decoder(self, group: int, k: int) -> DeltaDecoder:
        """Return the decoder of a shard's values, where the servers send how these change."""
        assert self.down is not None
        if (group, k) not in self._delta_decoders:
            specs = [r.spec(self.specs) for r in self._by_shard[k]]
            self._delta_decoders[group, k] = DeltaDecoder(self.down, specs, self.meetings, self.worker.rank)
        return self._delta_decoders[group, k]

    def _read_count(self, group: int, k: int) -> dict[str, Field]:
        return {} if self.down is None or wire_of(self.down) else {"reads": self._delta_decoder(group, k).reads}

    def _changed_settings(self) -> dict[str, Field]:
        if self.optimizer is None:
            return {}
        now = scalars_of(self.optimizer)
        changed = {f"set.{name}": value for name, value in now.items() if self._sent_settings.get(name) != value}
        self._sent_settings = dict(now)
        return changed  # type: ignore[return-value]

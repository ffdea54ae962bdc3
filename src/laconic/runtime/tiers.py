"""From a strategy to what governs each parameter: a stack of tiers, inner to outer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.architecture.base import Architecture
from laconic.architecture.server.client import ServerClient
from laconic.compression.base import Compressor, Exchange, Outcome, State
from laconic.compression.bucket import Moment
from laconic.compression.codec import Codec
from laconic.compression.none import Identity
from laconic.compression.optional import edge_of, has_memory, joins_of, wire_of
from laconic.compression.payload import pack, unpack
from laconic.errors import StrategyError
from laconic.runtime.in_flight import (
    InFlight,
    concurrently,
    run_exchanges,
)
from laconic.runtime.meeting import EdgeMeeting, Meeting
from laconic.runtime.packed_tensors import PackedTensors
from laconic.runtime.parameter_buckets import form_buckets
from laconic.runtime.whole_buckets import SHORT, WholeBuckets, widened
from laconic.schedule.base import Schedule
from laconic.strategy import Condition, Map, Phases, Sentence, Strategy, Tiers
from laconic.sync.base import Sync
from laconic.sync.contexts import EveryContext
from laconic.topology.mixing import Mixing
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Communication, Group, Request, Worker

Stack = tuple[tuple[Sentence, str | None], ...]
"""Sentences that govern a parameter, inner to outer, each with the mesh dimension it spans (None: all workers)."""

_PLAIN = Identity()


@dataclass
class Tier:
    """One sentence at work within one group: its words, and their memory."""

    sentence: Sentence
    group: Group
    seed: int = 0
    worker: Worker | None = None  # whose clock must account for encoding and decoding
    memory: dict[str, State] = field(default_factory=dict)
    sharded_with: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each tensor of which the memory holds pieces, the tensors that were cut into shards together with it."""
    sync_state: State = field(default_factory=dict)
    in_flight: dict[str, InFlight] = field(default_factory=dict)  # communications that are not complete yet, by name
    server: ServerClient | None = None  # the parameter server, where the architecture has one
    rate: Callable[[], float] = lambda: 1.0  # the learning rate now
    settings: Callable[[], Mapping[str, float]] = dict  # settings of the optimizer that the compressor has taken over
    logged: Callable[[str], float | None] = lambda metric: None  # the value the script last logged of a metric
    factors: Callable[[str], tuple[Tensor, Tensor] | None] = lambda name: (
        None
    )  # the factors of a linear layer's gradient

    def __post_init__(self) -> None:
        self.sync: Sync[EveryContext] = self.sentence.sync.make()
        self.compressor: Compressor = self.sentence.compressor
        self.architecture = architecture_of(self.sentence)
        self.schedule = schedule_of(self.sentence)
        self.compression = self.sentence.chain
        self._architecture_words = str(self.sentence.architecture)
        self.whole = WholeBuckets(self)

    @property
    def late(self) -> bool:
        return self.sync.late or self.schedule.finishes_late

    @property
    def label(self) -> str:
        return str(self.sentence)

    @property
    def offloads(self) -> bool:
        return self.sync.offloads

    @property
    def has_memory(self) -> bool:
        return self.sync.has_memory or has_memory(self.compressor)

    def average(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int, exact: bool = False
    ) -> Communication[list[Tensor]]:
        """Return the means of these tensors, in their own shapes: compressed where the compressor accepts them (and
        they need not be exact), with this worker's memory of each; tensors of one type share messages."""
        outcomes = yield from self.outcomes(specs, tensors, step, exact, own=False)
        return [outcome.result for outcome in outcomes]

    def buckets(self, specs: Sequence[TensorSpec], devices: Sequence[torch.device]) -> list[list[int]]:
        """Return the indices of these tensors in buckets that `whole.average_once` takes as a whole."""
        return form_buckets(specs, devices, self.compressor)

    def moment(self, step: int) -> Moment:
        """Return what an exchange of this step knows of it."""
        return Moment(step, self.rate(), partial(self.meeting, step=step))

    def outcomes(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int, exact: bool = False, own: bool = True
    ) -> Communication[list[Outcome]]:
        """Do as `average`, and return with each mean what this worker itself contributed to it, if that is wanted."""
        accepted = [not exact and self.compressor.accepts(spec) for spec in specs]
        if any(compressed and spec.dtype in SHORT for spec, compressed in zip(specs, accepted, strict=True)):
            return (yield from self._outcomes_widened(specs, tensors, step, accepted, own))
        kinds = [spec.dtype for spec, compressed in zip(specs, accepted, strict=True) if compressed]
        if joins_of(self.compressor) and len(set(kinds)) < len(kinds):
            return (yield from self._exchange_joined(specs, tensors, step, accepted))
        if len(kinds) > 1 and len(set(kinds)) == 1:
            chosen = [i for i, compressed in enumerate(accepted) if compressed]
            whole = self.whole.exchange(tuple(specs[i] for i in chosen), [tensors[i] for i in chosen], step, own)
            if whole is not None:
                return (yield from self._beside(whole, chosen, specs, tensors, step))
        elements = [spec.numel for spec, compressed in zip(specs, accepted, strict=True) if compressed]
        self.coded("encode", self.compression, elements)
        exchanges = [self._exchange(s, x, step, t) for s, x, t in zip(specs, tensors, accepted, strict=True)]
        communication = run_exchanges(exchanges, self.carry)
        outcomes: list[Outcome]
        if any(accepted):
            encoded = [spec for spec, compressed in zip(specs, accepted, strict=True) if compressed]
            outcomes = yield from self.whole.counted_apart(communication, encoded, tensors[0].device)
        else:
            outcomes = yield from communication
        self.coded("decode", self.compression, elements)
        if any(accepted):
            self.whole.memory_replaced()
        for spec, outcome, compressed in zip(specs, outcomes, accepted, strict=True):
            if compressed:
                self.memory[spec.name] = outcome.state
        return [outcome.shaped(spec.shape) for spec, outcome in zip(specs, outcomes, strict=True)]

    def _outcomes_widened(
        self,
        specs: Sequence[TensorSpec],
        tensors: Sequence[Tensor],
        step: int,
        accepted: Sequence[bool],
        own: bool,
    ) -> Communication[list[Outcome]]:
        """Exchange in float32 what is compressed of tensors of 16 bits, and the others as they are."""
        wide = [widened(spec) if compressed else spec for spec, compressed in zip(specs, accepted, strict=True)]
        values = [x.to(spec.dtype) for spec, x in zip(wide, tensors, strict=True)]
        outcomes = yield from self.outcomes(wide, values, step, own=own)
        return [outcome.to(spec.dtype) for spec, outcome in zip(specs, outcomes, strict=True)]

    def _beside(
        self,
        whole: Communication[list[Outcome]],
        chosen: Sequence[int],
        specs: Sequence[TensorSpec],
        tensors: Sequence[Tensor],
        step: int,
    ) -> Communication[list[Outcome]]:
        """Exchange the tensors that are sent as they are beside a bucket of those that are compressed."""
        dense = [i for i in range(len(specs)) if i not in set(chosen)]
        plain = [self._exchange(specs[i], tensors[i], step, False) for i in dense]
        found, others = yield from concurrently([whole, run_exchanges(plain, self.carry)])
        outcomes = dict(zip([*chosen, *dense], [*found, *others], strict=True))
        return [outcomes[i].shaped(spec.shape) for i, spec in enumerate(specs)]

    def _exchange_joined(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int, accepted: Sequence[bool]
    ) -> Communication[list[Outcome]]:
        """Exchange the compressed tensors as one vector for each type, and the others as they are."""
        kinds: dict[torch.dtype | int, list[int]] = {}
        for i, (spec, compressed) in enumerate(zip(specs, accepted, strict=True)):
            kinds.setdefault(spec.dtype if compressed else i, []).append(i)
        whole = [specs[of[0]] if len(of) == 1 else joined_spec([specs[i] for i in of]) for of in kinds.values()]
        flats = [torch.cat([tensors[i].reshape(-1) for i in of]) for of in kinds.values()]
        joint = yield from self.outcomes(whole, flats, step)
        found: dict[int, Outcome] = {}
        for of, outcome in zip(kinds.values(), joint, strict=True):
            found.update(zip(of, outcome.split([specs[i].shape for i in of]), strict=True))
        return [found[i] for i in range(len(specs))]

    def carry(self, request: Request) -> Communication[Any]:
        """Carry one request out through the architecture."""
        elements = (request.tensor.numel(),)
        self.coded("encode", self._architecture_words, elements)
        result = yield from self.architecture.carry(request, self.server or self.group)
        self.coded("decode", self._architecture_words, elements)
        return result

    def mixing(self, nodes: int | None = None) -> Mixing:
        """Return the topology's weights among so many nodes; if that is not given, among this group's members."""
        if self.sentence.topology is None:
            raise StrategyError(f"`{self.sentence}` has no topology; write one, as in dpsgd / none / gossip / ring")
        weights: Mixing = self.sentence.topology.make().mixing(self.group.size if nodes is None else nodes, self.seed)
        return weights

    def wire(self, x: Tensor) -> torch.dtype:
        """Return the format in which a tensor is sent to one other worker; single numbers are never shortened."""
        short = wire_of(self.compressor)
        shorter = short is not None and x.ndim > 0 and x.is_floating_point() and short.itemsize < x.dtype.itemsize
        return short if short is not None and shorter else x.dtype

    def swap(
        self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]], control: float = 0.0
    ) -> Communication[dict[int, list[Tensor]]]:
        """Send the tensors in `outgoing` to single members, and return those received from the members in `incoming`,
        whose values there give the shapes and types."""
        once = {id(tensors): tensors for tensors in outgoing.values()}  # most rules send the same to all
        packed = {key: PackedTensors.of(tensors, self.wire) for key, tensors in once.items()}
        empty = {source: PackedTensors.like(tensors, self.wire) for source, tensors in incoming.items()}
        self.coded("encode", self.compression, [n for parcel in packed.values() for n in parcel.cast_elements])
        sent = {to: packed[id(tensors)].messages for to, tensors in outgoing.items()}
        received = {source: parcel.messages for source, parcel in empty.items()}
        yield from concurrently([self.architecture.swap(sent, received, self.group, control)])
        self.coded("decode", self.compression, [n for parcel in empty.values() for n in parcel.cast_elements])
        return {source: parcel.unpack() for source, parcel in empty.items()}

    def encode(self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int) -> list[Tensor]:
        """Compress these tensors without other workers, and return payloads whose lengths every worker knows."""
        self.coded("encode", self.compression, [spec.numel for spec in specs if self.compressor.accepts(spec)])
        codecs = map(self._codec, specs)
        return [
            pack(x) if codec is None else codec.encode(x.float(), self.meeting(spec, step))
            for spec, x, codec in zip(specs, tensors, codecs, strict=True)
        ]

    def decode(self, specs: Sequence[TensorSpec], payloads: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the tensors that payloads of `encode` hold."""
        self.coded("decode", self.compression, [spec.numel for spec in specs if self.compressor.accepts(spec)])
        found = []
        for spec, payload in zip(specs, payloads, strict=True):
            shape, codec = torch.Size(spec.shape), self._codec(spec)
            if codec is None:
                found.append(unpack(payload, (spec.dtype, spec.numel))[0].view(shape))
            else:
                found.append(codec.decode(payload, shape, self.meeting(spec, step)).to(spec.dtype))
        return found

    def _codec(self, spec: TensorSpec) -> Codec | None:
        """Return the codec in which one worker alone can encode such a tensor; None where it is sent as it is."""
        if not self.compressor.accepts(spec):
            return None
        if not isinstance(self.compressor, Codec) or self.compressor.ragged:
            raise StrategyError(
                f"{self.compression} has no payload of a known length that any worker can decode; write topk(0.01), "
                "for example"
            )
        return self.compressor

    def differences(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], neighbours: Sequence[int], step: int
    ) -> Communication[list[list[Tensor]]]:
        """Return the difference of each neighbour's tensors from these, as a compressor for edges transmits it."""
        accepted = [self.compressor.accepts(spec) for spec in specs]
        elements = [spec.numel for spec, compressed in zip(specs, accepted, strict=True) if compressed]
        self.coded("encode", self.compression, elements * len(neighbours))
        exchanges = [self._edge_differences(specs, tensors, accepted, j, step) for j in neighbours]
        found = yield from concurrently(exchanges)
        self.coded("decode", self.compression, elements * len(neighbours))
        return found

    def _edge_differences(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], accepted: Sequence[bool], other: int, step: int
    ) -> Communication[list[Tensor]]:
        """Exchange all tensors along one edge at once, with the memory that both ends have of it."""
        rank = self.group.rank
        edge = f"@{min(rank, other)}-{max(rank, other)}"
        exchanges: list[Exchange] = []
        for spec, x, compressed in zip(specs, tensors, accepted, strict=True):
            meet = EdgeMeeting(rank, self.group.size, step, spec.name, self.seed, other=other)
            if not compressed:
                exchanges.append(_exchange_difference(x, meet))
                continue
            state = self.state_of(replace(spec, name=spec.name + edge), x)
            exchanges.append(edge_of(self.compressor, x, state, meet))

        def carry(request: Request) -> Communication[Any]:
            received = torch.empty_like(request.tensor)
            yield from self.architecture.swap({other: [request.tensor]}, {other: [received]}, self.group)
            return received

        outcomes = yield from run_exchanges(exchanges, carry)
        for spec, outcome, compressed in zip(specs, outcomes, accepted, strict=True):
            if compressed:
                self.memory[spec.name + edge] = outcome.state
        return [outcome.result for outcome in outcomes]

    def coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        """Report to the worker's clock that these words encode or decode tensors of so many elements."""
        if self.worker is not None:
            self.worker.coded(part, words, elements)

    def meeting(self, spec: TensorSpec, step: int) -> Meeting:
        more = (self.seed, self.rate(), self.settings(), self.logged, partial(self.factors, spec.name))
        return Meeting(self.group.rank, self.group.size, step, spec.name, *more)

    def _exchange(self, spec: TensorSpec, x: Tensor, step: int, compressed: bool) -> Exchange:
        meet = self.meeting(spec, step)
        if not compressed:
            return _PLAIN.exchange(x, {}, meet)
        return self.compressor.exchange(x, self.state_of(spec, x), meet)

    def state_of(self, spec: TensorSpec, x: Tensor) -> State:
        """Return the compressor's memory of this tensor, initialised at its first use."""
        found = self.memory.get(spec.name)
        if found is None or (self.offloads and any(v.device != x.device for v in found.values())):
            found = self.compressor.init(spec) if found is None else found
            self.memory[spec.name] = {k: v.to(x.device) for k, v in found.items()}
        return self.memory[spec.name]


def _exchange_difference(x: Tensor, meet: EdgeMeeting) -> Exchange:
    """Return the uncompressed difference from the neighbour's tensor."""
    other = yield meet.swap(x.contiguous())
    return Outcome(other - x)


def joined_spec(specs: Sequence[TensorSpec]) -> TensorSpec:
    """Return the specification of several tensors joined to one vector."""
    name, parts = "+".join(spec.name for spec in specs), tuple(spec.numel for spec in specs)
    return TensorSpec(name, (sum(parts),), specs[0].dtype, parts=parts)


def architecture_of(sentence: Sentence) -> Architecture:
    """Return a sentence's architecture, over its topology if it has one."""
    architecture: Architecture = sentence.architecture.make()
    return architecture.over(None if sentence.topology is None else sentence.topology.make())


def schedule_of(sentence: Sentence) -> Schedule:
    """Return a sentence's schedule, which may depend on whether gradients are compressed."""
    schedule: Schedule = sentence.schedule.make()
    return schedule if sentence.chain == "none" else schedule.for_compressed()


def stack_for(strategy: Strategy, spec: TensorSpec, holds: Callable[[object], bool], level: str | None = None) -> Stack:
    """Return the sentences that govern one parameter now. `holds` tells whether a phase's end condition has been
    met."""
    if isinstance(strategy, Sentence):
        return ((strategy, level),)
    if isinstance(strategy, Map):
        return stack_for(strategy.choose(spec.name, spec.shape, spec.role), spec, holds, level)
    if isinstance(strategy, Phases):
        active = next((part for part, until in strategy.parts if not holds(until)), strategy.last)
        return stack_for(active, spec, holds, level)
    assert isinstance(strategy, Tiers)
    if level is not None:
        raise StrategyError(f"tiers inside the tier {level!r}: write all levels in one row, [...]@a > [...]@b")
    return tuple(pair for inner, name in strategy.levels for pair in stack_for(inner, spec, holds, name))


def stacks_by_parameter(
    strategy: Strategy, specs: Sequence[TensorSpec], holds: Callable[[object], bool]
) -> dict[Stack, list[int]]:
    """Return which parameters (by index, ascending) each stack of sentences governs now."""
    governed: dict[Stack, list[int]] = {}
    for i, spec in enumerate(specs):
        governed.setdefault(stack_for(strategy, spec, holds), []).append(i)
    return governed


def active_conditions(strategy: Strategy, passed: Collection[Condition]) -> list[Condition]:
    """Return the conditions that could end a phase now: of each sequence of phases, only that of the active one."""
    inner: Sequence[Strategy] = strategy.parts_within
    found: list[Condition] = []
    if isinstance(strategy, Phases):
        active, until = next(((p, c) for p, c in strategy.parts if c not in passed), (strategy.last, None))
        inner, found = [active], [] if until is None else [until]
    return list(dict.fromkeys([*found, *(c for part in inner for c in active_conditions(part, passed))]))


def level_names(strategy: Strategy) -> list[str]:
    """Return the mesh dimensions that a strategy names, inner to outer."""
    if isinstance(strategy, Tiers):
        return [name for _, name in strategy.levels]
    return list(dict.fromkeys(name for part in strategy.parts_within for name in level_names(part)))


def is_collective(strategy: Strategy) -> bool:
    """Return whether all workers form one process group in some part of the strategy."""
    if isinstance(strategy, Sentence):
        return bool(strategy.architecture.make().collective)
    return any(is_collective(part) for part in strategy.parts_within)

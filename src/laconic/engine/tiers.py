"""From a strategy to what governs each parameter: a stack of tiers, inner to outer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from laconic.architecture.base import Architecture, Carrying
from laconic.compression.base import Compressor, Exchange, State, TensorSpec
from laconic.compression.chain import chain
from laconic.compression.none import Identity
from laconic.engine.exchange import Departed, confer
from laconic.engine.meeting import Meeting
from laconic.errors import StrategyError
from laconic.schedule.base import Schedule
from laconic.strategy import Condition, Map, Phases, Sentence, Strategy, Tiers
from laconic.sync.base import Sync
from laconic.worker import Group, Handle, Request, Worker

Stack = tuple[tuple[Sentence, str | None], ...]
"""Sentences that govern a parameter, inner to outer, each with the mesh dimension it spans (None: everyone)."""

_PLAIN = Identity()


@dataclass
class Tier:
    """One sentence at work among one group: its words, and their memory."""

    sentence: Sentence
    group: Group
    seed: int = 0
    worker: Worker | None = None  # whose clock is told what encoding and decoding cost
    memory: dict[str, State] = field(default_factory=dict)
    sync_state: State = field(default_factory=dict)
    flights: dict[str, Departed] = field(default_factory=dict)  # what was said and is not answered yet, by name

    def __post_init__(self) -> None:
        self.sync: Sync = self.sentence.sync.make()
        self.compressor: Compressor = chain([word.make() for word in self.sentence.compression])
        self.architecture: Architecture = self.sentence.architecture.make()
        self.schedule: Schedule = self.sentence.schedule.make()
        self.compression = "+".join(map(str, self.sentence.compression))
        self._carriage = str(self.sentence.architecture)

    @property
    def late(self) -> bool:
        return self.sync.late or self.schedule.late

    @property
    def has_memory(self) -> bool:
        return self.sync.has_memory or self.compressor.has_memory

    def converse(
        self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor], step: int, exact: bool = False
    ) -> Generator[list[Handle], Any, list[Tensor]]:
        """The means of these tensors, in their own shapes: compressed where the compressor accepts them (and they need
        not be exact), with what this worker remembers of each; tensors that are alike travel as one."""
        taken = [not exact and self.compressor.accepts(spec) for spec in specs]
        exchanges = [self._exchange(s, x, step, t) for s, x, t in zip(specs, tensors, taken, strict=True)]
        elements = [spec.numel for spec, compressed in zip(specs, taken, strict=True) if compressed]
        self._coded("encode", self.compression, elements)
        outcomes = yield from confer(exchanges, self.carry)
        self._coded("decode", self.compression, elements)
        for spec, outcome, compressed in zip(specs, outcomes, taken, strict=True):
            if compressed:
                self.memory[spec.name] = outcome.state
        return [outcome.result.view(spec.shape) for spec, outcome in zip(specs, outcomes, strict=True)]

    def carry(self, request: Request) -> Carrying:
        """One request through the architecture."""
        self._coded("encode", self._carriage, [request.tensor.numel()])
        result = yield from self.architecture.carry(request, self.group)
        self._coded("decode", self._carriage, [request.tensor.numel()])
        return result

    def _coded(self, part: Literal["encode", "decode"], words: str, elements: Sequence[int]) -> None:
        if self.worker is not None:
            self.worker.coded(part, words, elements)

    def _exchange(self, spec: TensorSpec, x: Tensor, step: int, compressed: bool) -> Exchange:
        meet = Meeting(self.group.rank, self.group.size, step, spec.name, self.seed, x.device)
        if not compressed:
            return _PLAIN.exchange(x, {}, meet)
        if spec.name not in self.memory:
            self.memory[spec.name] = {k: v.to(x.device) for k, v in self.compressor.init(spec).items()}
        return self.compressor.exchange(x, self.memory[spec.name], meet)


def stack_for(strategy: Strategy, spec: TensorSpec, holds: Callable[[object], bool], level: str | None = None) -> Stack:
    """Which sentences govern one parameter now. `holds` says whether a phase's end condition has come true."""
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


def govern(strategy: Strategy, specs: Sequence[TensorSpec], holds: Callable[[object], bool]) -> dict[Stack, list[int]]:
    """Which parameters (by index, ascending) each stack of sentences governs now."""
    governed: dict[Stack, list[int]] = {}
    for i, spec in enumerate(specs):
        governed.setdefault(stack_for(strategy, spec, holds), []).append(i)
    return governed


def active_conditions(strategy: Strategy, passed: Collection[Condition]) -> list[Condition]:
    """The conditions that could end a phase now: of each row of phases, only that of the part at work."""
    inner: Sequence[Strategy] = strategy.parts_within
    found: list[Condition] = []
    if isinstance(strategy, Phases):
        active, until = next(((p, c) for p, c in strategy.parts if c not in passed), (strategy.last, None))
        inner, found = [active], [] if until is None else [until]
    return list(dict.fromkeys([*found, *(c for part in inner for c in active_conditions(part, passed))]))


def level_names(strategy: Strategy) -> list[str]:
    """The mesh dimensions a strategy speaks of, inner to outer."""
    if isinstance(strategy, Tiers):
        return [name for _, name in strategy.levels]
    return list(dict.fromkeys(name for part in strategy.parts_within for name in level_names(part)))

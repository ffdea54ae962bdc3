"""From a strategy to what governs each parameter: a stack of tiers, inner to outer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from laconic.architecture.base import Architecture
from laconic.compression.base import Compressor, Exchange, State, TensorSpec
from laconic.compression.chain import chain
from laconic.engine.meeting import Meeting
from laconic.errors import StrategyError
from laconic.schedule.base import Schedule
from laconic.strategy import Condition, Map, Phases, Sentence, Strategy, Tiers
from laconic.sync.base import Sync
from laconic.worker import Group

Stack = tuple[tuple[Sentence, str | None], ...]
"""Sentences that govern a parameter, inner to outer, each with the mesh dimension it spans (None: everyone)."""


@dataclass
class Tier:
    """One sentence at work among one group: its words, and their memory."""

    sentence: Sentence
    group: Group
    seed: int = 0
    memory: dict[str, State] = field(default_factory=dict)
    sync_state: State = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sync: Sync = self.sentence.sync.make()
        self.compressor: Compressor = chain([word.make() for word in self.sentence.compression])
        self.architecture: Architecture = self.sentence.architecture.make()
        self.schedule: Schedule = self.sentence.schedule.make()

    @property
    def late(self) -> bool:
        return self.sync.late or self.schedule.late

    @property
    def has_memory(self) -> bool:
        return self.sync.has_memory or self.compressor.has_memory

    def exchange(self, spec: TensorSpec, x: Tensor, step: int) -> Exchange:
        """One tensor's conversation in one step, with what this worker remembers of it."""
        if spec.name not in self.memory:
            self.memory[spec.name] = {k: v.to(x.device) for k, v in self.compressor.init(spec).items()}
        meet = Meeting(self.group.rank, self.group.size, step, spec.name, self.seed, x.device)
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

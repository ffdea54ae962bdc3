"""Partitions of a model: sets of parameters, each governed by one stack of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from laconic.compression.optional import joins_of
from laconic.errors import StrategyError
from laconic.runtime.session_interface import Training
from laconic.runtime.sync_context import TierContext
from laconic.runtime.tiers import Stack, Tier
from laconic.strategy import DEFAULTS
from laconic.values.comm_plan import CommPlan
from laconic.values.timing import Timing


@dataclass(eq=False)
class Partition:
    """The parameters of a session (by index, sorted) that one stack of sentences governs."""

    session: Training
    stack: Stack
    members: list[int]
    tiers: list[Tier]
    number: int = 0
    """How many partitions with the same stack come before: those of parameters that are cut in other ways."""

    def __post_init__(self) -> None:
        for sentence, level in self.stack[1:]:
            if sentence.schedule.name != DEFAULTS["schedule"] or sentence.schedule.arguments:
                raise StrategyError(
                    f"messages are formed in the innermost tier, so `{sentence.schedule}` at {level} would do nothing: "
                    "write the schedule there"
                )
        for tier in self.tiers:
            if tier.schedule.finishes_late and not tier.sync.plain:
                raise StrategyError(
                    f"`{tier.schedule.name}` steps layer by layer in the next forward pass, which `{tier.sync.name}` "
                    "does not expect: write bsp, or another schedule"
                )
            if tier.sync.skips and joins_of(tier.compressor):
                raise StrategyError(
                    f"`{tier.sentence}` joins tensors that are not all there in every step; write a compression of "
                    "single tensors, as topk(0.01)+ef"
                )
            tier.sync_state = tier.sync.init(self.context_for(tier))

    @property
    def key(self) -> str:
        """The stack as text, by which a checkpoint assigns saved memory to partitions."""
        stack = " > ".join(f"[{sentence}]@{level}" for sentence, level in self.stack)
        return f"{stack} #{self.number}" if self.number else stack

    def context_for(self, tier: Tier) -> TierContext:
        """Return what the sync rule of one of the tiers sees of this partition."""
        if id(tier) not in self._contexts:
            self._contexts[id(tier)] = TierContext(self.session, self.members, tier)
        return self._contexts[id(tier)]

    @cached_property
    def _contexts(self) -> dict[int, TierContext]:
        return {}

    def plan(self, arrival: Sequence[int], timing: Timing | None) -> CommPlan:
        """Return the innermost schedule's plan, in the numbering of this partition's members."""
        specs = [self.session.parameters.specs[i] for i in self.members]
        return self.tiers[0].schedule.plan(specs, self.own(arrival), timing)

    def own(self, arrival: Sequence[int]) -> list[int]:
        """Select this partition's gradients from all gradients in the order of their arrival, in the numbering of its
        members."""
        local = {i: k for k, i in enumerate(self.members)}
        return [local[i] for i in arrival if i in local]

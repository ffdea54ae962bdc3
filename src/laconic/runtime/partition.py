"""Partitions of a model: parameters that are governed by one stack of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.errors import StrategyError
from laconic.runtime.sync_context import TierContext
from laconic.runtime.tiers import Stack, Tier
from laconic.runtime.training import Training
from laconic.strategy import DEFAULTS
from laconic.values.comm_plan import CommPlan
from laconic.values.timing import Timing


@dataclass(eq=False)
class Partition:
    """Some of a session's parameters (by index, sorted) under one stack."""

    session: Training
    stack: Stack
    members: list[int]
    tiers: list[Tier]

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
            if tier.sync.skips and tier.compressor.joins:
                raise StrategyError(
                    f"`{tier.sentence}` joins tensors that are not all there in every step; write a compression of "
                    "single tensors, as topk(0.01)+ef"
                )
            tier.sync_state = tier.sync.init(self.context_for(tier))

    @property
    def key(self) -> str:
        """The stack as text: how a checkpoint knows whose memory is whose."""
        return " > ".join(f"[{sentence}]@{level}" for sentence, level in self.stack)

    def context_for(self, tier: Tier) -> TierContext:
        """What the sync rule of one of its tiers sees of it."""
        return TierContext(self.session, self.members, tier)

    def plan(self, arrival: Sequence[int], timing: Timing | None) -> CommPlan:
        """The innermost schedule's plan, in the numbering of this section's members."""
        specs = [self.session.parameters.specs[i] for i in self.members]
        return self.tiers[0].schedule.plan(specs, self.own(arrival), timing)

    def own(self, arrival: Sequence[int]) -> list[int]:
        """Of all gradients in the order of their arrival, this section's, in the numbering of its members."""
        local = {i: k for k, i in enumerate(self.members)}
        return [local[i] for i in arrival if i in local]

"""The arrangement of a strategy: which sentences govern which parameters in the current phase, and what follows from
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TypeGuard

from laconic.errors import ContractError
from laconic.runtime.parameters import Parameters
from laconic.runtime.partition import Partition
from laconic.runtime.sharded.solo_group import SoloGroup
from laconic.runtime.tiers import Stack, Tier, active_conditions, stacks_by_parameter
from laconic.strategy import Condition, Sentence, StepCondition, Strategy

NOBODY = ""
"""The level of a tier in which a worker is by itself."""

TakesPart = Callable[[str, str | None], bool]
"""Whether a parameter, by its name, is averaged at a level."""

Cut = Callable[[str], object]
"""In which way a parameter, by its name, is cut among devices: equal for those that are cut alike."""


class Arrangement:
    """The partitions of a model's parameters under a strategy, and the phases that are over."""

    def __init__(self, strategy: Strategy, parameters: Parameters, takes_part: TakesPart, cut: Cut) -> None:
        self.strategy, self._parameters = strategy, parameters
        self._takes_part, self._cut = takes_part, cut
        self.partitions: list[Partition] = []
        self._met: set[Condition] = set()

    def renew(self, make: Callable[[Stack, list[int], int], Partition]) -> None:
        """Make the partitions of the current phase; those that continue keep their memory."""
        old = {(partition.stack, tuple(partition.members)): partition for partition in self.partitions}
        seen: Counter[Stack] = Counter()
        self.partitions = []
        for stack, members in self._governed():
            continuing = old.get((stack, tuple(members)))
            self.partitions.append(continuing or make(stack, members, seen[stack]))
            seen[stack] += 1
        self._refuse_what_cannot_be()

    def leaving(self) -> list[Partition]:
        """Return the partitions that govern nothing in the phase that begins."""
        staying = {stack for stack, _ in self._governed()}
        return [partition for partition in self.partitions if partition.stack not in staying]

    def forget(self) -> None:
        """Drop all partitions, so that rules begin from the present parameters."""
        self.partitions = []

    def _governed(self) -> list[tuple[Stack, list[int]]]:
        """Return which parameters each stack of sentences governs now; of those that are cut along different devices,
        each kind by itself."""
        specs = self._parameters.specs
        governed: dict[tuple[Stack, object], list[int]] = {}
        for stack, members in stacks_by_parameter(self.strategy, specs, self._met.__contains__).items():
            for i in members:
                name = specs[i].name
                own = tuple(pair for pair in stack if self._takes_part(name, pair[1])) or _alone()
                governed.setdefault((own, self._cut(name)), []).append(i)
        if not governed:
            raise ContractError("this model has sparse parameters only: distribute(..., sparse='dense') averages them")
        return [(stack, members) for (stack, _), members in governed.items()]

    def _refuse_what_cannot_be(self) -> None:
        tiers = self.tiers
        if self._parameters.sparse and (self.replicas_differ or not self.collective):
            raise ContractError(
                f"`{self.strategy}` takes whole parameters, and {self._parameters.sparse_names[0]!r} has sparse "
                "gradients, which are exchanged separately: pass sparse='dense' to distribute()"
            )
        if len(tiers) > 1 and any(tier.sync.replaces_step or tier.sync.steers for tier in tiers):
            does = "takes the place of optimizer.step()" if self.replaces_step else "sets batch or learning rate"
            raise ContractError(
                f"`{self.strategy}` has a rule that {does}, which it can only do for the whole model: write it as one "
                "sentence, without a map or tiers around it"
            )
        if self.micro_batches > 1 and any(tier.sync.skips for tier in tiers):
            raise ContractError(
                f"`{self.strategy}` sums gradients over steps and skips others in each: add them up in one step, "
                "inside `with model.no_sync():`"
            )

    # ------------------------------------------------------------------------------------------ what follows

    @property
    def tiers(self) -> list[Tier]:
        return [tier for partition in self.partitions for tier in partition.tiers]

    @property
    def micro_batches(self) -> int:
        """Over how many steps gradients are summed before they are exchanged."""
        return max(tier.sync.micro_batches for tier in self.tiers)

    @property
    def collective(self) -> bool:
        """Whether all workers are one process group."""
        return all(tier.architecture.collective for tier in self.tiers)

    @property
    def late(self) -> bool:
        return any(tier.late for tier in self.tiers)

    @property
    def has_memory(self) -> bool:
        return any(tier.has_memory for tier in self.tiers)

    @property
    def replicas_differ(self) -> bool:
        return any(tier.sync.replicas_differ for tier in self.tiers)

    @property
    def replaces_step(self) -> bool:
        return any(tier.sync.replaces_step for tier in self.tiers)

    @property
    def averages_gradients(self) -> bool:
        """Whether gradients are averaged during backward in some step of this phase."""
        with_others = [tier for tier in self.tiers if not isinstance(tier.group, SoloGroup)]
        return any(any(map(tier.sync.averages_gradients, range(tier.sync.period))) for tier in with_others)

    @property
    def skips(self) -> bool:
        """Whether a rule leaves gradients out of some steps."""
        return any(tier.sync.skips for tier in self.tiers)

    @property
    def plainly_synchronous(self) -> bool:
        """Whether every gradient is averaged uncompressed in every step, as a closure assumes."""
        compresses = any(t.compressor.accepts(spec) for t in self.tiers for spec in self._parameters.specs)
        return not self.late and not self.has_memory and not compresses and not self.replaces_step

    def averaging_tiers(self, step: int) -> list[Tier]:
        """Return the tiers in which a step's gradients are averaged; buffers and sparse gradients use the same ones."""
        stacks = [[t for t in s.tiers if t.sync.averages_gradients(step)] for s in self.partitions]
        return max(stacks, key=len, default=[])  # what is cut takes part in fewer

    def gradient_weights(self) -> dict[int, float]:
        """Ask the rules which gradients the coming step needs: return the factor of each, where a rule sets one."""
        weights: dict[int, float] = {}
        for partition in self.partitions:
            for tier in partition.tiers:
                if tier.sync.skips:
                    found = tier.sync.weights(partition.context_for(tier), tier.sync_state)
                    for i, weight in zip(partition.members, found, strict=True):
                        weights[i] = weights.get(i, 1.0) * weight
        return weights

    # ------------------------------------------------------------------------------------------ phases

    def advance(self, holds: Callable[[Condition], bool]) -> bool:
        """End the phases whose condition holds; return whether there was one."""
        met = [condition for condition in active_conditions(self.strategy, self._met) if holds(condition)]
        self._met.update(met)
        return bool(met)

    @property
    def passed(self) -> list[str]:
        """The conditions of the phases that are over, as text."""
        return [str(condition) for condition in self.strategy.conditions() if condition in self._met]

    @passed.setter
    def passed(self, texts: list[str]) -> None:
        self._met = {condition for condition in self.strategy.conditions() if str(condition) in texts}

    def pass_steps(self, steps: int) -> None:
        """End the phases that are over after so many steps."""
        self._met = {c for c in self.strategy.conditions() if _ends_with_a_step(c) and steps >= c.step}


def _ends_with_a_step(condition: Condition) -> TypeGuard[StepCondition]:
    return isinstance(condition, StepCondition)


@cache
def _alone() -> Stack:
    """Return what governs a parameter that no other worker has."""
    plain = Strategy.parse("bsp")
    assert isinstance(plain, Sentence)
    return ((plain, NOBODY),)

"""Parameters that share one stack of sentences, and what a sync rule sees of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.architecture.server.client import Server
from laconic.errors import StrategyError
from laconic.runtime.in_flight import Departed, Journey
from laconic.runtime.tiers import Stack, Tier
from laconic.runtime.training import Training
from laconic.strategy import DEFAULTS
from laconic.topology.mixing import Matrix, Mixing
from laconic.values.comm_plan import CommPlan
from laconic.values.tensor_spec import TensorSpec
from laconic.values.timing import Timing
from laconic.worker import Group, Handle, Home, Letter, Machine


@dataclass(eq=False)
class Section:
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
            tier.sync_state = tier.sync.init(self.seen_by(tier))

    @property
    def key(self) -> str:
        """The stack as text: how a checkpoint knows whose memory is whose."""
        return " > ".join(f"[{sentence}]@{level}" for sentence, level in self.stack)

    def address(self, tier: Tier) -> str:
        """Under which one of its tiers is found by letters."""
        return self.session.address(tier, self.members)

    def seen_by(self, tier: Tier) -> SectionView:
        return SectionView(self, tier)

    def plan(self, arrival: Sequence[int], timing: Timing | None) -> CommPlan:
        """The innermost schedule's plan, in the numbering of this section's members."""
        specs = [self.session.parameters.specs[i] for i in self.members]
        return self.tiers[0].schedule.plan(specs, self.own(arrival), timing)

    def own(self, arrival: Sequence[int]) -> list[int]:
        """Of all gradients in the order of their arrival, this section's, in the numbering of its members."""
        local = {i: k for k, i in enumerate(self.members)}
        return [local[i] for i in arrival if i in local]


@dataclass(frozen=True)
class SectionView:
    """What a sync rule of one tier sees and may do."""

    section: Section
    tier: Tier

    @property
    def parameters(self) -> list[Tensor]:
        return [self.section.session.parameters.dense[i] for i in self.section.members]

    @property
    def names(self) -> list[str]:
        return [self.section.session.parameters.specs[i].name for i in self.section.members]

    @property
    def group(self) -> Group:
        return self.tier.group

    @property
    def step(self) -> int:
        return self.section.session.steps

    @property
    def seconds(self) -> float:
        return self.section.session.worker.clock_seconds()

    @property
    def gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self.parameters]

    @property
    def buffers(self) -> list[Tensor]:
        return [b for b in self.section.session.buffers() if b.is_floating_point()]

    @property
    def optimizer(self) -> Optimizer:
        optimizer = self.section.session.optimizer
        assert optimizer is not None
        return optimizer

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def waited_seconds(self) -> float:
        return self.section.session.worker.waited_seconds

    def logged(self, metric: str) -> float | None:
        return self.section.session.logged(metric)

    def steer(self, batch: int | None, rate: float) -> None:
        self.section.session.steer(batch, rate)

    @property
    def server(self) -> Server:
        if self.tier.server is None:
            raise StrategyError(f"`{self.tier.sentence}` has no server; write ps as its architecture")
        return self.tier.server

    def note(self, **numbers: float) -> None:
        self.section.session.noted.update(numbers)

    def apply(self) -> None:
        self.section.session.apply()

    def host(self, name: str, member: int, build: Callable[[], Machine]) -> None:
        home = Home(self.group.ranks[member], on="worker")
        self.section.session.worker.host(self._address(name), home, build)

    def call(self, name: str, letter: Letter, writes: bool) -> Handle:
        return self.section.session.worker.call(self._address(name), letter, writes)

    def _address(self, name: str) -> str:
        return f"{self.section.address(self.tier)}/{name}"

    def catch_up(self) -> None:
        self.section.session.worker.catch_up()

    def start(self, name: str, talk: Journey) -> None:
        assert name not in self.tier.flights, f"{name} is under way already"
        self.tier.flights[name] = Departed(talk)

    def under_way(self, name: str) -> bool:
        return name in self.tier.flights

    def has_arrived(self, name: str) -> bool:
        return self.tier.flights[name].is_there()

    def arrive(self, name: str) -> Generator[list[Handle], Any, Any]:
        return self.tier.flights.pop(name).rest()

    @property
    def seed(self) -> int:
        return self.tier.seed

    def mixing(self, extra: int = 0) -> Mixing:
        return self.tier.mixing(extra)

    def mix(self, tensors: list[Tensor], matrix: Matrix) -> Generator[list[Handle], Any, list[Tensor]]:
        if self.tier.compressor.meets == "edge":
            return (yield from self._mix_by_edges(tensors, matrix))
        kept = float(matrix[self.group.rank, self.group.rank])
        said = self.said(tensors)
        heard = yield from self.hear(tensors, matrix)
        if said is tensors:
            return [kept * x + others for x, others in zip(tensors, heard, strict=True)]
        return [x + (others - (1 - kept) * own) for x, own, others in zip(tensors, said, heard, strict=True)]

    def _mix_by_edges(self, tensors: list[Tensor], matrix: Matrix) -> Generator[list[Handle], Any, list[Tensor]]:
        """Each neighbour's difference, as far as it is said, times the edge's weight: both ends move alike, so that the
        sum of all stays."""
        rank, specs = self.group.rank, [self.section.session.parameters.specs[i] for i in self.section.members]
        neighbours = [j for j in np.flatnonzero(matrix[rank]).tolist() if j != rank]
        found = yield from self.tier.differences(specs, tensors, neighbours, self.step)
        mixed = [x.clone() for x in tensors]
        for j, differences in zip(neighbours, found, strict=True):
            for x, difference in zip(mixed, differences, strict=True):
                x.add_(difference.view(x.shape), alpha=float(matrix[rank, j]))
        return mixed

    def hear(self, tensors: list[Tensor], matrix: Matrix) -> Generator[list[Handle], Any, list[Tensor]]:
        rank = self.group.rank
        told = {j: tensors for j in np.flatnonzero(matrix[:, rank]).tolist() if j != rank}
        weights = {j: float(matrix[rank, j]) for j in np.flatnonzero(matrix[rank]).tolist() if j != rank}
        heard = yield from self.swap(told, dict.fromkeys(weights, tensors))
        totals = [torch.zeros_like(x) for x in tensors]
        for j, weight in weights.items():
            for total, x in zip(totals, heard[j], strict=True):
                total.add_(x, alpha=weight)
        return totals

    def said(self, tensors: list[Tensor]) -> list[Tensor]:
        if all(self.tier.wire(x) == x.dtype for x in tensors):
            return tensors
        return [x.to(self.tier.wire(x)).to(x.dtype) for x in tensors]

    def written(self, tensors: list[Tensor]) -> list[Tensor]:
        return self.tier.written(self._specs, tensors, self.step)

    def read(self, payloads: Sequence[Tensor]) -> list[Tensor]:
        return self.tier.read(self._specs, payloads, self.step)

    @property
    def _specs(self) -> list[TensorSpec]:
        return [self.section.session.parameters.specs[i] for i in self.section.members]

    def swap(
        self, told: Mapping[int, Sequence[Tensor]], heard: Mapping[int, Sequence[Tensor]], control: float = 0.0
    ) -> Generator[list[Handle], Any, dict[int, list[Tensor]]]:
        return self.tier.swap(told, heard, control)

    def average(
        self, tensors: list[Tensor], exact: bool = False, only: Sequence[int] | None = None
    ) -> Generator[list[Handle], Any, list[Tensor]]:
        members = self.section.members if only is None else [self.section.members[k] for k in only]
        specs = [self.section.session.parameters.specs[i] for i in members]
        return self.tier.converse(specs, tensors, self.step, exact)

    def average_and_own(self, tensors: list[Tensor]) -> Generator[list[Handle], Any, tuple[list[Tensor], list[Tensor]]]:
        specs = [self.section.session.parameters.specs[i] for i in self.section.members]
        outcomes = yield from self.tier.outcomes(specs, [x.clone() for x in tensors], self.step)
        return [o.result for o in outcomes], [o.result if o.sent is None else o.sent for o in outcomes]

    def mean(self, tensors: list[Tensor]) -> Generator[list[Handle], Any, list[Tensor]]:
        specs = [TensorSpec("", tuple(x.shape), x.dtype) for x in tensors]
        return self.tier.converse(specs, tensors, self.step, exact=True)

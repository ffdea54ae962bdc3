"""The implementation of `sync.contexts.EveryContext`: what a sync rule of one tier sees of the training it governs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from laconic.architecture.server.client import ServerClient
from laconic.errors import ContractError, StrategyError
from laconic.runtime.in_flight import InFlight, pipelined
from laconic.runtime.session_interface import Training
from laconic.runtime.tiers import Tier
from laconic.topology.mixing import Matrix, Mixing
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Actor, ActorMessage, Communication, Group, Handle, Home


@dataclass(frozen=True)
class TierContext:
    """The view of the training, and the means to communicate, that a tier gives its sync rule."""

    session: Training
    members: list[int]
    tier: Tier

    @cached_property
    def parameters(self) -> list[Tensor]:
        return [self.session.parameters.dense[i] for i in self.members]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.session.parameters.specs[i].name for i in self.members)

    @property
    def group(self) -> Group:
        return self.tier.group

    @property
    def step(self) -> int:
        return self.session.steps

    @property
    def seconds(self) -> float:
        return self.session.worker.clock_seconds()

    @property
    def gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in self.parameters]

    @property
    def buffers(self) -> list[Tensor]:
        return [b for b in self.session.buffers() if b.is_floating_point()]

    @property
    def optimizer(self) -> Optimizer:
        optimizer = self.session.optimizer
        assert optimizer is not None
        return optimizer

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def waited_seconds(self) -> float:
        return self.session.worker.waited_seconds

    def logged(self, metric: str) -> float | None:
        return self.session.logged(metric)

    def steer(self, batch: int | None, rate: float) -> None:
        self.session.steer(batch, rate)

    @property
    def server(self) -> ServerClient:
        if self.tier.server is None:
            raise StrategyError(f"`{self.tier.sentence}` has no server; write ps as its architecture")
        return self.tier.server

    def note(self, **numbers: float) -> None:
        self.session.noted.update(numbers)

    def apply(self) -> None:
        self.session.apply()

    def host(self, name: str, member: int, build: Callable[[], Actor]) -> None:
        home = Home(self.group.ranks[member], on="worker")
        self.session.worker.host(self._address(name), home, build)

    def call(self, name: str, message: ActorMessage, writes: bool) -> Handle:
        return self.session.worker.call(self._address(name), message, writes)

    def _address(self, name: str) -> str:
        return f"{self.session.address(self.tier, self.members)}/{name}"

    def catch_up(self) -> None:
        self.session.worker.catch_up()

    def start(self, name: str, communication: Communication[Any]) -> None:
        assert name not in self.tier.in_flight, f"{name} is in flight already"
        self.tier.in_flight[name] = InFlight(communication)

    def is_in_flight(self, name: str) -> bool:
        return name in self.tier.in_flight

    def has_arrived(self, name: str) -> bool:
        return self.tier.in_flight[name].is_ready()

    def wait_for(self, name: str) -> Communication[Any]:
        return self.tier.in_flight.pop(name).rest()

    @property
    def seed(self) -> int:
        return self.tier.seed

    def mixing(self, nodes: int | None = None) -> Mixing:
        return self.tier.mixing(nodes)

    def mix(self, tensors: list[Tensor], matrix: Matrix) -> Communication[list[Tensor]]:
        if self.tier.compressor.meets == "edge":
            return (yield from self._mix_by_edges(tensors, matrix))
        kept = float(matrix[self.group.rank, self.group.rank])
        rounded = self.as_received(tensors)
        sums = yield from self.neighbour_sum(tensors, matrix)
        if rounded is tensors:
            return [kept * x + others for x, others in zip(tensors, sums, strict=True)]
        return [x + (others - (1 - kept) * own) for x, own, others in zip(tensors, rounded, sums, strict=True)]

    def _mix_by_edges(self, tensors: list[Tensor], matrix: Matrix) -> Communication[list[Tensor]]:
        """Add each neighbour's difference, as far as the compressor transmits it, times the edge's weight: both ends
        move by the same amount, so that the sum over all workers stays the same."""
        rank, specs = self.group.rank, [self.session.parameters.specs[i] for i in self.members]
        neighbours = [j for j in np.flatnonzero(matrix[rank]).tolist() if j != rank]
        found = yield from self.tier.differences(specs, tensors, neighbours, self.step)
        mixed = [x.clone() for x in tensors]
        for j, differences in zip(neighbours, found, strict=True):
            for x, difference in zip(mixed, differences, strict=True):
                x.add_(difference.view(x.shape), alpha=float(matrix[rank, j]))
        return mixed

    def neighbour_sum(self, tensors: list[Tensor], matrix: Matrix) -> Communication[list[Tensor]]:
        rank = self.group.rank
        outgoing = {j: tensors for j in np.flatnonzero(matrix[:, rank]).tolist() if j != rank}
        weights = {j: float(matrix[rank, j]) for j in np.flatnonzero(matrix[rank]).tolist() if j != rank}
        received = yield from self.swap(outgoing, dict.fromkeys(weights, tensors))
        totals = [torch.zeros_like(x) for x in tensors]
        for j, weight in weights.items():
            for total, x in zip(totals, received[j], strict=True):
                total.add_(x, alpha=weight)
        return totals

    def as_received(self, tensors: list[Tensor]) -> list[Tensor]:
        if all(self.tier.wire(x) == x.dtype for x in tensors):
            return tensors
        return [x.to(self.tier.wire(x)).to(x.dtype) for x in tensors]

    def encode(self, tensors: list[Tensor]) -> list[Tensor]:
        return self.tier.encode(self._specs, tensors, self.step)

    def decode(self, payloads: Sequence[Tensor]) -> list[Tensor]:
        return self.tier.decode(self._specs, payloads, self.step)

    @property
    def _specs(self) -> list[TensorSpec]:
        return [self.session.parameters.specs[i] for i in self.members]

    def swap(
        self, outgoing: Mapping[int, Sequence[Tensor]], incoming: Mapping[int, Sequence[Tensor]], control: float = 0.0
    ) -> Communication[dict[int, list[Tensor]]]:
        return self.tier.swap(outgoing, incoming, control)

    def average(
        self, tensors: list[Tensor], exact: bool = False, only: Sequence[int] | None = None
    ) -> Communication[list[Tensor]]:
        members = self.members if only is None else [self.members[k] for k in only]
        if len(tensors) != len(members):
            raise ContractError(
                f"average() got {len(tensors)} tensors for {len(members)} parameters: give one for each, in their "
                "order, or name the parameters that the tensors belong to with only=[...]"
            )
        specs = [self.session.parameters.specs[i] for i in members]
        return self.tier.average(specs, tensors, self.step, exact)

    def buckets(self, which: Sequence[int]) -> list[list[int]]:
        which = tuple(which)
        if which not in self._buckets:
            specs = [self.session.parameters.specs[self.members[k]] for k in which]
            formed = self.tier.buckets(specs, [self.parameters[k].device for k in which])
            self._buckets[which] = [[which[j] for j in bucket] for bucket in formed]
        return self._buckets[which]

    @cached_property
    def _buckets(self) -> dict[tuple[int, ...], list[list[int]]]:
        return {}

    def average_vector(self, vector: Tensor, members: Sequence[int]) -> Communication[None]:
        specs = tuple(self.session.parameters.specs[self.members[k]] for k in members)
        return self.tier.whole.average_once(specs, vector, self.step)

    def pipelined(self, communications: Iterable[Communication[Any]], width: int = 3) -> Communication[None]:
        return pipelined(communications, width)

    def average_and_sent(self, tensors: list[Tensor]) -> Communication[tuple[list[Tensor], list[Tensor]]]:
        specs = [self.session.parameters.specs[i] for i in self.members]
        outcomes = yield from self.tier.outcomes(specs, [x.clone() for x in tensors], self.step)
        return [o.result for o in outcomes], [o.result if o.sent is None else o.sent for o in outcomes]

    def mean(self, tensors: list[Tensor]) -> Communication[list[Tensor]]:
        specs = [TensorSpec("", tuple(x.shape), x.dtype) for x in tensors]
        return self.tier.average(specs, tensors, self.step, exact=True)

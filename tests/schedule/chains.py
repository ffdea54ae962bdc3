"""A chain of layers on the virtual engine, whose tensors are known by their sizes: what is computed and sent when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

import laconic
from laconic.network.network_tree import Network
from laconic.virtual.compute import Compute
from laconic.virtual.rpc import Delivery
from laconic.virtual.simulate import Simulated, simulate


@dataclass(frozen=True)
class Chain:
    """Linear layers without biases between these widths."""

    widths: Sequence[int]
    workers: int = 2
    bits_per_second: float = 1e6
    latency_seconds: float = 1e-4
    forward_seconds: float = 0.01
    backward_seconds: float = 0.02

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""
        return [a * b for a, b in pairwise(self.widths)]

    def train(self, strategy: str, steps: int = 9, servers: int = 0) -> Simulated:
        """Plans that are made from measured times are made after six steps."""

        def body() -> list[torch.Tensor]:
            torch.manual_seed(1)
            model: nn.Module = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in pairwise(self.widths)))
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model, optimizer = laconic.distribute(model, optimizer, strategy)
            torch.manual_seed(100 + laconic.rank())
            for _ in range(steps):
                model(torch.randn(4, self.widths[0])).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            laconic.finish(model, optimizer)
            return [p.detach().clone() for p in model.parameters()]

        network = Network.flat(self.workers + servers, self.bits_per_second, self.latency_seconds)
        compute = Compute(self.forward_seconds, self.backward_seconds)
        return simulate(body, self.workers, network, compute, timeline=True, servers=servers)

    def computed(self, run: Simulated, part: str, tensor: int, step: int, worker: int = 0) -> tuple[float, float]:
        """When a layer's part of a step began and ended."""
        assert run.timeline is not None
        name = f"{part} {tensor}.weight"
        (span,) = [s for s in run.timeline.of(worker, "compute") if s.name == name and s.arguments.get("step") == step]
        return span.begin_seconds, span.end_seconds

    def deliveries(self, run: Simulated, kind: str, step: int, worker: int = 0) -> dict[int, Delivery]:
        """Whole tensors in flight to or from a server after this step's backward pass has begun, by number."""
        assert run.rpc is not None
        begin = self.computed(run, "backward", len(self.sizes) - 1, step, worker)[1]
        end = self.ends(run, step, worker)
        found: dict[int, Delivery] = {}
        for trip in run.rpc.deliveries:
            end_of_line = trip.source if kind == "contribute" else trip.to
            if trip.kind == kind and end_of_line == worker and begin <= trip.begin_seconds < end:
                found[self._number(trip.nbytes)] = trip
        return found

    def ends(self, run: Simulated, step: int, worker: int = 0) -> float:
        """When the next step's backward pass begins, by which everything has come."""
        assert run.timeline is not None
        later = [
            s
            for s in run.timeline.of(worker, "compute")
            if s.arguments.get("step") == step + 1 and s.arguments.get("part") == "backward"
        ]
        return later[0].begin_seconds if later else float("inf")

    def _number(self, nbytes: int) -> int:
        """The tensor of so many bytes; the first one's message has a flag for each tensor, too."""
        with_flags = [4 * (n + (len(self.sizes) if i == 0 else 0)) for i, n in enumerate(self.sizes)]
        return with_flags.index(nbytes)

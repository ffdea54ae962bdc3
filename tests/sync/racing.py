"""Digits on virtual workers of different speeds: who makes which gradient when, and what the model is worth then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute, Stragglers
from laconic.virtual.simulate import Simulated
from tests.sync.digits import data, network


@dataclass
class Race:
    """What happened: when each gradient was ready (seconds, worker), validation losses (seconds, loss), and so on."""

    gradients: list[tuple[float, int]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    notes: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    waited_seconds: list[float] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    accuracy: float = 0.0  # of worker 0's model, in points
    simulated: Simulated | None = None

    @property
    def seconds(self) -> float:
        return max(seconds for seconds, _ in self.gradients)

    @property
    def loss(self) -> float:
        return self.losses[-1][1]

    def steps(self, worker: int) -> list[float]:
        return [seconds for seconds, w in self.gradients if w == worker]

    def reached(self, target: float) -> float:
        """When the validation loss first was at most so much."""
        return next((seconds for seconds, loss in self.losses if loss <= target), float("inf"))


def race(
    strategy: str,
    workers: int = 4,
    gradients: int = 400,
    *,
    equal: bool = False,
    slowness: tuple[float, ...] = (1.0,),
    straggling: Stragglers | None = None,
    bits_per_second: float = 1e9,
    rate: float = 0.2,
    momentum: float = 0.0,
    batch: int = 16,
    seed: int = 0,
    servers: int = 0,
    every: int = 5,
    **more: Any,
) -> Race:
    """So many gradients in all, by whoever is ready, or as many by each (`equal`); a step computes for 31 ms."""
    out = Race()

    def body() -> None:
        images, labels, test_images, test_labels = data()
        worker, rank = connect(), laconic.rank()
        mine = torch.arange(rank, len(labels), laconic.size())
        draw = torch.Generator().manual_seed(1000 * seed + rank)
        model = network(seed)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        step = 0
        while step < gradients // workers if equal else _count(worker, out) < gradients:
            chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            laconic.log(loss=loss.item())
            loss.backward()
            out.gradients.append((worker.clock_seconds(), rank))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            out.notes.append((rank, dict(optimizer.session.noted)))
            if rank == 0 and step % every == 0:
                with torch.no_grad():
                    value = functional.cross_entropy(model(test_images), test_labels).item()
                out.losses.append((worker.clock_seconds(), value))
        if rank == 0:
            out.accuracy = 100 * (model(test_images).argmax(1) == test_labels).float().mean().item()
        out.waited_seconds.append(worker.waited_seconds)
        out.parameters.append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    compute = Compute(0.01, 0.02, 0.001, slowness, straggling)
    net = Network.flat(workers + servers, bits_per_second, 1e-4)
    out.simulated = laconic.simulate(body, workers, net, compute, servers=servers, **more)
    out.gradients.sort()
    return out


def _count(worker: Any, out: Race) -> int:
    """Gradients so far; whoever is behind this worker's time makes its own first."""
    worker.catch_up()
    return len(out.gradients)

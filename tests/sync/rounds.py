"""A small regression on virtual workers, and the same rounds of local steps written out by hand in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import laconic
from laconic.network.network_tree import Network
from laconic.real.connect import connect
from laconic.virtual.compute import Compute
from laconic.worker import Kind

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
WORKERS = 4


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def with_momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def muon(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, lr=0.02)


def net() -> nn.Module:
    """Without biases, as Muon takes matrices only; float64, so that what differs differs."""
    torch.manual_seed(3)
    layers = (
        nn.Linear(6, 9, bias=False),
        nn.Tanh(),
        nn.Linear(9, 8, bias=False),
        nn.Tanh(),
        nn.Linear(8, 2, bias=False),
    )
    return nn.Sequential(*layers).double()


def loss(model: nn.Module, rank: int, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, dtype=torch.float64, generator=draw)
    y = torch.stack([x.sum(dim=1), (x * x).mean(dim=1) - rank], dim=1)  # every worker has its own optimum
    return (model(x) - y).square().mean()


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


@dataclass
class Run:
    """What one worker saw: after each step its parameters, and the payload bytes it had sent in it."""

    model: nn.Module
    optimizer: Any
    path: list[Tensor]
    sent_bytes: list[float]

    def remembered(self, name: str) -> Tensor:
        """What the sync rule of the only sentence remembers, over all parameters."""
        state = self.optimizer.session.partitions[0].tiers[0].sync_state
        return flat(state[f"{name}.{i}"] for i in range(len(list(self.model.parameters()))))

    def memory(self, name: str) -> Tensor:
        """What the user's optimizer remembers."""
        return flat(self.optimizer.state[p][name] for p in self.model.parameters())


def train(
    strategy: str,
    steps: int,
    make: Make = sgd,
    before: Callable[[], None] = lambda: None,
    after: Callable[[Run, int], Any] = lambda run, step: None,
    checkpoint: Path | None = None,
) -> Run:
    """The loop of a script, on the worker that calls it: from a checkpoint if there is one, to so many steps."""
    model = net()
    model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
    run, ledger = Run(model, optimizer, [], []), connect().ledger
    done = 0 if checkpoint is None else laconic.resume(checkpoint, model, optimizer).get("step", 0)
    before()
    for step in range(done, steps):
        already = ledger.sent_bytes(Kind.PAYLOAD)
        loss(model, laconic.rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.path.append(flat(model.parameters()))
        run.sent_bytes.append(ledger.sent_bytes(Kind.PAYLOAD) - already)
        after(run, step + 1)
    return run


def simulated(strategy: str, steps: int, make: Make = sgd, workers: int = WORKERS, **setting: Any) -> list[Run]:
    return laconic.simulate(lambda: train(strategy, steps, make), workers, **setting).results


def timed(strategy: str, steps: int, network: Network, compute: Compute) -> tuple[float, float]:
    """Seconds of all steps, and for how many of them the worker that waited most was blocked."""

    def body() -> tuple[float, float]:
        worker = connect()
        began: list[float] = []
        run = train(strategy, steps, before=lambda: began.extend((worker.clock_seconds(), worker.waited_seconds)))
        assert len(run.path) == steps
        return worker.clock_seconds() - began[0], worker.waited_seconds - began[1]

    results = laconic.simulate(body, WORKERS, network, compute).results
    return max(seconds for seconds, _ in results), max(waited for _, waited in results)


def by_hand(steps: int, period: int, inner: Make, outer: Make | None, workers: int = WORKERS) -> list[Tensor]:
    """Every worker's parameters after local steps and, where there is one, outer steps on the mean displacement."""
    point, replicas = net(), [net() for _ in range(workers)]
    optimizers = [inner(replica.parameters()) for replica in replicas]
    move = None if outer is None else outer(point.parameters())
    for step in range(steps):
        for rank, (replica, optimizer) in enumerate(zip(replicas, optimizers, strict=True)):
            optimizer.zero_grad()
            loss(replica, rank, step).backward()
            optimizer.step()
        if move is not None and (step + 1) % period == 0:
            for p, *theirs in zip(point.parameters(), *(r.parameters() for r in replicas), strict=True):
                p.grad = p.detach() - torch.stack([t.detach() for t in theirs]).mean(dim=0)
            move.step()
            for replica in replicas:
                replica.load_state_dict(copy.deepcopy(point.state_dict()))
    return [flat(replica.parameters()) for replica in replicas]


def assert_same(runs: list[Run], expected: list[Tensor], tolerance: float = 1e-9) -> None:
    for run, parameters in zip(runs, expected, strict=True):
        torch.testing.assert_close(run.path[-1], parameters, rtol=0, atol=tolerance)

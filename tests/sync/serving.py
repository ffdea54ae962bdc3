"""Asynchronous training on virtual workers: batches are handed out to whoever comes, and every push is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import laconic
from laconic.real.connect import connect
from laconic.virtual.simulate import Simulated
from tests.sync import digits

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Trace:
    """What happened, in the order of virtual time."""

    staleness: list[int] = field(default_factory=list)
    noted: list[dict[str, float]] = field(default_factory=list)
    losses: list[tuple[int, float, float]] = field(default_factory=list)  # gradients taken, seconds, training loss
    gradients: int = 0


def train(strategy: str, gradients: int, workers: int, make: Make, **setting: Any) -> tuple[Simulated, Trace]:
    """The digits, until so many gradients are taken by all workers together; each takes the next when it is free.

    Every `every` gradients the model of whoever comes is evaluated on all training images.
    """
    seed, batch, every = (setting.pop(name, default) for name, default in (("seed", 0), ("batch", 32), ("every", 0)))
    trace = Trace()
    images, labels, *_ = digits.data()

    def body() -> float:
        model = digits.network(seed)
        model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
        worker = connect()
        mine = torch.arange(laconic.rank(), len(labels), laconic.size())
        draw = torch.Generator().manual_seed(1000 * seed + laconic.rank())
        while trace.gradients < gradients:
            trace.gradients += 1
            if every and trace.gradients % every == 0:
                trace.losses.append((trace.gradients, worker.clock_seconds(), evaluate(model)))
            chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.noted.append(dict(optimizer.session.noted))
            if "staleness" in optimizer.session.noted:
                trace.staleness.append(int(optimizer.session.noted["staleness"]))
        laconic.finish(model, optimizer)
        return evaluate(model)

    return laconic.simulate(body, workers, **setting), trace


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    images, labels, *_ = digits.data()
    return nn.functional.cross_entropy(model(images), labels).item()


class Counter(nn.Module):
    """One number per (worker, step): a step of SGD with rate 1 adds 1 to that of its own, so that whoever reads the
    model sees which updates it holds."""

    def __init__(self, workers: int, steps: int) -> None:
        super().__init__()
        self.tags = nn.Parameter(torch.zeros(workers, steps, dtype=torch.float64))

    def forward(self, rank: int, step: int, weight: float) -> Tensor:
        return -weight * self.tags[rank, step]


@dataclass(frozen=True)
class Seen:
    """A worker after one of its steps: when it may go on, and the tags it holds."""

    rank: int
    step: int
    seconds: float
    tags: Tensor


def count(strategy: str, workers: int, steps: int, **setting: Any) -> tuple[Simulated, list[Seen]]:
    """Tagged updates under rules of which 1/N of each counts, so that the server adds 1."""
    seen: list[Seen] = []

    def body() -> Any:
        model = Counter(workers, steps)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=1.0), strategy)
        for step in range(steps):
            model(laconic.rank(), step, workers).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(Seen(laconic.rank(), step, connect().clock_seconds(), model.tags.detach().clone()))
        laconic.finish(model, optimizer)
        return model.tags.detach().clone()

    return laconic.simulate(body, workers, **setting), seen


@dataclass(frozen=True)
class Arrived:
    """One push: whose it was, its staleness, when its worker went on, and the model it went on with."""

    rank: int
    staleness: int
    seconds: float
    model: Tensor
    noted: dict[str, float]


def busy(
    strategy: str,
    gradients: int,
    workers: int,
    curvature: Iterable[float] = (1.0,),
    rate: float = 0.1,
    momentum: float = 0.0,
    **setting: Any,
) -> tuple[Simulated, list[Arrived]]:
    """The quadratic of these curvatures, from (1, 1, …), by workers that are always busy until enough is computed."""
    eigenvalues = torch.tensor(list(curvature), dtype=torch.float64)
    pushes: list[Arrived] = []
    taken = 0

    def body() -> None:
        nonlocal taken
        model = nn.Linear(len(eigenvalues), 1, bias=False).double()
        nn.init.ones_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        worker = connect()
        while taken < gradients:
            taken += 1
            (0.5 * model(torch.eye(len(eigenvalues), dtype=torch.float64)).squeeze(1).square() @ eigenvalues).backward()
            optimizer.step()
            optimizer.zero_grad()
            noted = dict(optimizer.session.noted)
            point = model.weight.detach().flatten().clone()
            pushes.append(Arrived(worker.rank, int(noted.get("staleness", 0)), worker.clock_seconds(), point, noted))

    return laconic.simulate(body, workers, **setting), pushes


def versions_of(simulated: Simulated, per_update: int = 1) -> list[int]:
    """The staleness of each push as it follows from the order of messages alone, where so many pushes are an update."""
    assert simulated.rpc is not None
    (hosted,) = simulated.rpc.hosted_actors.values()
    read, found, pushes = {}, [], 0
    for _, sender, kind in hosted.calls:
        if kind in ("peek", "pull"):
            read[sender] = pushes // per_update
        elif kind == "push":
            found.append(pushes // per_update - read[sender])
            pushes += 1
    return found

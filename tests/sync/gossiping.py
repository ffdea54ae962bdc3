"""Workers that gossip: on quadratics whose every step can be written down, and on digits divided by class."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.real.connect import connect
from laconic.strategy import Sentence, Strategy
from laconic.topology.mixing import Mixing
from laconic.worker import Kind
from tests.sync.digits import data, network

DIMENSION = 5
Array = NDArray[np.float64]


class Point(nn.Module):
    """A parameter that is pulled towards a target: half the sum of curvature·(x − target)²."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(DIMENSION, dtype=torch.float64))

    def forward(self, curvature: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (curvature * (self.x - target) ** 2).sum()


@dataclass
class Walk:
    """What happened, by [step, worker, coordinate]; x has one more row, the end. `seen` is what `look` saw, by step."""

    x: Array
    gradients: Array
    sent_bytes: list[float]
    seen: list[list[Any]] = field(default_factory=list)

    @property
    def mean(self) -> Array:
        return self.x.mean(axis=1)

    @property
    def disagreement(self) -> Array:
        """The distance to consensus at each step."""
        return np.linalg.norm(self.x - self.x.mean(axis=1, keepdims=True), axis=(1, 2))


def sgd(rate: float = 0.1, momentum: float = 0.0) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum)


def draws(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def walk(
    strategy: str,
    workers: int,
    steps: int,
    make: Callable[[Any], torch.optim.Optimizer] | None = None,
    curvature: Array | float = 1.0,
    targets: Array | None = None,
    starts: Array | None = None,
    look: Callable[[Any], Any] = lambda tier: None,
    noise: float = 0.0,
    **setting: Any,
) -> Walk:
    """So many steps on virtual workers; those with a start of their own go there before the first."""
    bends = np.broadcast_to(curvature, (workers, DIMENSION))
    goals = np.zeros((workers, DIMENSION)) if targets is None else targets

    def run() -> tuple[Any, ...]:
        rank = laconic.rank()
        model = Point()
        model, optimizer = laconic.distribute(model, (make or sgd())(model.parameters()), strategy)
        if starts is not None:
            model.x.data.copy_(torch.from_numpy(starts[rank]))
        bend, goal = torch.tensor(bends[rank]), torch.tensor(goals[rank])
        draw = torch.Generator().manual_seed(rank)
        xs, gradients, seen = [], [], []
        before = connect().ledger.sent_bytes(Kind.PAYLOAD)
        for _ in range(steps):
            xs.append(model.x.detach().numpy().copy())
            model(bend, goal).backward()
            model.x.grad += noise * torch.randn(DIMENSION, generator=draw, dtype=torch.float64)
            gradients.append(model.x.grad.numpy().copy())
            optimizer.step()
            optimizer.zero_grad()
            seen.append(look(optimizer.session.partitions[0].tiers[0]))
        xs.append(model.x.detach().numpy().copy())
        return np.array(xs), np.array(gradients), connect().ledger.sent_bytes(Kind.PAYLOAD) - before, seen

    results = laconic.simulate(run, workers, **setting).results
    x, gradients, sent, seen = zip(*results, strict=True)
    by_step = [list(row) for row in zip(*seen, strict=True)]
    return Walk(np.stack(x, axis=1), np.stack(gradients, axis=1), list(sent), by_step)


def mixing_of(strategy: str, workers: int) -> Mixing:
    """The weights that a sentence mixes with."""
    sentence = Strategy.parse(strategy)
    assert isinstance(sentence, Sentence) and sentence.topology is not None
    made: Mixing = sentence.topology.make().mixing(workers)
    return made


def of_classes(labels: Tensor, classes: Collection[int]) -> Tensor:
    """The items whose label is one of these: data that differ from worker to worker."""
    return torch.isin(labels, torch.tensor(sorted(classes))).nonzero().view(-1)


@dataclass(frozen=True)
class Classified:
    """A worker's own model at the end: accuracy in points on all test images (of `classes`), loss on all training
    ones; what `look` saw."""

    accuracy: float
    loss: float
    seen: Any


def classify(
    strategy: str,
    parts: Sequence[Collection[int]] | int,
    steps: int,
    make: Callable[[Any], torch.optim.Optimizer],
    look: Callable[[Any], Any] = lambda tier: None,
    seed: int = 0,
    finish: bool = False,
    **setting: Any,
) -> list[Classified]:
    """Digits: workers that know these classes each, or so many workers with equal shares of all."""
    images, labels, test_images, test_labels = data()
    given = [list(range(10))] * parts if isinstance(parts, int) else [list(part) for part in parts]
    every = {c for part in given for c in part}

    def run() -> Classified:
        rank = laconic.rank()
        mine = of_classes(labels, given[rank])
        if isinstance(parts, int):
            mine = mine[rank::parts]
        draw = torch.Generator().manual_seed(1000 * seed + rank)
        model = network(seed)
        model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
        for _ in range(steps):
            chosen = mine[torch.randint(len(mine), (16,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        seen = look(optimizer.session.partitions[0].tiers[0])
        if finish:
            laconic.finish(model, optimizer)
        known, test = of_classes(labels, every), of_classes(test_labels, every)
        with torch.no_grad():
            right = (model(test_images[test]).argmax(dim=1) == test_labels[test]).float().mean().item()
            loss = functional.cross_entropy(model(images[known]), labels[known]).item()
        return Classified(100 * right, loss, seen)

    results: list[Classified] = laconic.simulate(run, len(given), **setting).results
    return results

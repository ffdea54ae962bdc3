"""The reference task: scikit-learn's digits and a small network, trained by virtual workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.real.connect import connect
from laconic.worker import Kind

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,297 images to train on, 500 to test with."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[500:], order[:500]
    return images[train], labels[train], images[test], labels[test]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class Trained:
    """One worker's end: of the finished model, the test accuracy in points and the training loss; bytes it sent."""

    accuracy: float
    loss: float
    sent_bytes: float
    parameters: Tensor


def train(
    strategy: str,
    steps: int,
    batch: int,
    make: Make,
    seed: int = 0,
    examples: int | None = None,
    build: Callable[[int], nn.Module] = network,
    before_step: Callable[[Any, int], None] = lambda optimizer, step: None,
) -> Trained:
    """The loop of a script, on the worker that calls it; each draws from its own part of the training images."""
    images, labels, test_images, test_labels = data()
    images, labels = images[:examples], labels[:examples]
    rank, size = laconic.rank(), laconic.size()
    mine = torch.arange(rank, len(labels), size)
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    model = build(seed)
    model, optimizer = laconic.distribute(model, make(model.parameters()), strategy)
    ledger = connect().ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    for step in range(steps):
        chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
        loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
        laconic.log(loss=loss.item())
        loss.backward()
        before_step(optimizer, step)
        optimizer.step()
        optimizer.zero_grad()
    sent = ledger.sent_bytes(Kind.PAYLOAD) - before
    laconic.finish(model, optimizer)
    with torch.no_grad():
        right = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
        final = functional.cross_entropy(model(images), labels).item()
    return Trained(100 * right, final, sent, torch.cat([p.detach().flatten() for p in model.parameters()]))


def trained(strategy: str, steps: int, batch: int, make: Make, workers: int = 4, **more: Any) -> Trained:
    """Worker 0's end; all of them hold the same model by then."""
    results = laconic.simulate(lambda: train(strategy, steps, batch, make, **more), workers).results
    assert all(torch.equal(r.parameters, results[0].parameters) for r in results)
    first: Trained = results[0]
    return first


def sgd(rate: float, momentum: float = 0.0) -> Make:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum)

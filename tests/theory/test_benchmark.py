"""The strategy matrix: four rules on one task, all treated alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

import laconic
from laconic.engine.connect import connect
from laconic.engine.virtual.compute import Compute
from laconic.engine.virtual.network import Network
from laconic.theory.benchmark import Point
from laconic.worker import Kind
from tests.sync.digits import data, network

FOUR = ("bsp", "asp / none / ps", "local(4)", "local(20)")
"""BSP, ASP, local SGD, and FedAvg with all clients: a local epoch of 4 workers is 20 steps."""


def train(strategy: str, workers: int, rate: float, seed: int, steps: int = 120, batch: int = 16) -> Sequence[Point]:
    """Digits on virtual workers whose steps take random times; the first worker looks at its model now and then."""
    images, labels, test_images, test_labels = data()
    curve: list[Point] = []

    def body() -> None:
        rank = laconic.rank()
        mine, draw = torch.arange(rank, len(labels), workers), torch.Generator().manual_seed(1000 * seed + rank)
        model: Any = network(seed)
        model, optimizer = laconic.distribute(model, torch.optim.SGD(model.parameters(), lr=rate), strategy)
        worker: Any = connect()
        before = worker.ledger.sent_bytes(Kind.PAYLOAD)
        for step in range(1, steps + 1):
            chosen = mine[torch.randint(len(mine), (batch,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and step % 20 == 0:
                with torch.no_grad():
                    right = (model(test_images).argmax(1) == test_labels).float().mean().item()
                sent = worker.ledger.sent_bytes(Kind.PAYLOAD) - before
                curve.append(Point(step, sent, worker.clock_seconds(), 100 * right))

    compute = Compute(0.01, 0.02, 0.001, law="exponential", seed=seed)
    laconic.simulate(body, workers, Network.flat(workers, 1e9, 1e-4), compute, seed)
    return curve

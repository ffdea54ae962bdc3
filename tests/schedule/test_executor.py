"""One executor for all plans: whatever the order, the pieces and the gates, training ends where `sequential` ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic import claims, registry
from laconic.network.network_tree import Network
from laconic.virtual.compute import Compute
from laconic.virtual.simulate import Simulated, simulate

WORDS = [e.name for e in registry.entries("schedule") if any(isinstance(c, claims.CoversOnce) for c in e.claims)]
STEPS = 9  # iterations are timed in the first six


class Odd(nn.Module):
    """Odd sizes, a tied weight, a layer nobody uses, one used in every other step, and a weight that is read by its
    parent alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.first, self.second = nn.Linear(5, 11), nn.Linear(11, 5)
        self.norm = nn.BatchNorm1d(5)
        self.read = nn.Linear(5, 5, bias=False)
        self.unused, self.seldom = nn.Linear(3, 2), nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.second(torch.tanh(self.first(self.embed(x)))) @ self.read.weight
        if self.calls % 2:
            y = self.seldom(y)
        out: torch.Tensor = self.head(self.norm(y))
        return out


def training(strategy: str, dtype: torch.dtype, steps: int = STEPS) -> Callable[[], list[torch.Tensor]]:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = Odd().to(dtype)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = laconic.distribute(model, optimizer, strategy)  # type: ignore[assignment]
        rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
        torch.manual_seed(100 + laconic.rank())
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.randint(0, 7, (6,))
            nn.functional.cross_entropy(model(x), (x + 1) % 7).backward()
            optimizer.step()
            rates.step()
        laconic.finish(model, optimizer)
        buffers = model.buffers() if "ps" not in strategy else ()  # servers have nothing to do with them
        return [p.detach().clone() for p in (*model.parameters(), *buffers)]

    return run


def run(strategy: str, workers: int, dtype: torch.dtype, **more: Any) -> Simulated:
    network = Network.flat(workers, 1e6, 1e-4)
    return simulate(training(strategy, dtype), workers, network, Compute(0.002, 0.004), **more)


@pytest.fixture(scope="module")
def plain() -> dict[tuple[int, torch.dtype], list[torch.Tensor]]:
    cases = [(2, torch.float32), (4, torch.float64)]
    return {case: run("bsp / sequential", *case).results[0] for case in cases}


@pytest.mark.parametrize("architecture", ["allreduce", "ps(2)"])
@pytest.mark.parametrize("word", WORDS)
def test_every_schedule_ends_where_sequential_does(
    word: str, architecture: str, plain: dict[tuple[int, torch.dtype], list[torch.Tensor]]
) -> None:
    for (workers, dtype), expected in plain.items():
        for found in run(f"bsp / {architecture} / {word}", workers, dtype).results:
            for x, y in zip(found, expected[: len(found)], strict=True):
                if workers == 2:
                    assert torch.equal(x, y)
                else:
                    torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("first", [3, 99])
def test_a_weight_that_two_layers_share_is_not_postponed(
    first: int, plain: dict[tuple[int, torch.dtype], list[torch.Tensor]]
) -> None:
    for found in run(f"bsp / allreduce / ooo_backprop_dp({first})", 2, torch.float32).results:
        assert all(torch.equal(x, y) for x, y in zip(found, plain[2, torch.float32], strict=True))

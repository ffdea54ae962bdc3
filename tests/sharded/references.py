"""What a sharded training must give: the same training on one process that has the whole model and every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import laconic
from tests.sharded.training import batch

Build = Callable[[], nn.Module]
Shard = Callable[[Any, Any], nn.Module]
Loss = Callable[[nn.Module, int, int], Tensor]


def squared(model: nn.Module, rank: int, step: int) -> Tensor:
    """The loss of a worker in a step."""
    x, y = batch(rank, step)
    loss: Tensor = (model(x) - y).square().mean()
    return loss


def alone(
    build: Build, ranks: int, steps: int = 4, loss: Loss = squared, scale: float = 1.0, clip: float | None = None
) -> list[Tensor]:
    """The parameters after steps of SGD with momentum on the mean of all ranks' gradients."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        for rank in range(ranks):
            (scale * loss(model, rank, step) / ranks).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def together(
    build: Build,
    shard: Shard,
    steps: int = 4,
    loss: Loss = squared,
    strategy: str = "none",
    weights: str | None = None,
    before_step: Callable[[Any, Any], None] = lambda model, optimizer: None,
) -> tuple[list[Tensor], Any]:
    """The same on this worker, with a model that `shard` has sharded; its whole parameters and the optimizer."""
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    model: Any = shard(build(), mesh)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer, strategy, weights=weights)
    for step in range(steps):
        loss(model, laconic.rank(), step).backward()
        before_step(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return whole_of(model), optimizer


def whole_of(model: nn.Module) -> list[Tensor]:
    """All parameters of a sharded model, whole."""
    return [p.detach().full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]


def assert_alike(found: list[list[Tensor]], expected: list[Tensor], atol: float = 1e-6) -> None:
    for parameters in found:
        for ours, theirs in zip(parameters, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


def assert_mostly_alike(found: list[list[Tensor]], expected: list[Tensor], share: float = 0.15) -> None:
    """All but a small share of the values are equal: a product in bf16 may round to the next value, since the kernel
    that computes it depends on the processor and on where its operands lie. Sums of another type change half."""
    for parameters in found:
        apart = torch.cat([(a - b).abs().flatten() for a, b in zip(parameters, expected, strict=True)])
        assert float((apart > 1e-6).float().mean()) <= share and float(apart.max()) < 1e-3

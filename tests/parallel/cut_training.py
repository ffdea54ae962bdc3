"""A small model that is cut among devices, its training on a mesh of virtual workers, and that of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import laconic
from laconic.parallel.tensor.megatron import whole

WIDTH, HIDDEN = 6, 10  # parts of five rows, of which no message has a round number
COPIES, PARTS = 2, 2
STEPS = 4


class Block(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x + self.down(torch.tanh(self.up(self.norm(x)))))
        return out


def cut(model: nn.Module, mesh: Any) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan, src_data_rank=None)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def batch(seed: int, step: int, copy: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + 10 * step + copy))
    return x, torch.sin(x[:, :3])


def loss_of(model: nn.Module, seed: int, step: int, copy: int) -> Tensor:
    x, y = batch(seed, step, copy)
    loss: Tensor = (model(x) - y).square().mean()
    return loss


def distributed(
    strategy: str, seed: int = 0, tiers: bool = False, own_seed: bool = False, **options: Any
) -> tuple[nn.Module, Any, int]:
    """Return this worker's model, optimizer, and copy: on the whole mesh, or among the copies of its part."""
    mesh: Any = laconic.init_device_mesh("cpu", (COPIES, PARTS), mesh_dim_names=("dp", "tp"))
    here = connect_rank(mesh)
    model = cut(Block(seed + (10 + here if own_seed else 0)), mesh["tp"])
    made = laconic.distribute(model, optimizer_of(model), strategy, mesh if tiers else mesh["dp"], **options)
    return made[0], made[1], mesh["dp"].get_group().rank()


def connect_rank(mesh: Any) -> int:
    found: int = mesh["dp"].get_group().rank() * PARTS + mesh["tp"].get_group().rank()
    return found


def trained(
    strategy: str,
    seed: int = 0,
    tiers: bool = False,
    before_step: Callable[[Any], None] = lambda optimizer: None,
    **options: Any,
) -> tuple[list[Tensor], Any]:
    """Train on this worker, and return whole parameters and the optimizer."""
    model, optimizer, copy = distributed(strategy, seed, tiers, **options)
    for step in range(STEPS):
        loss_of(model, seed, step, copy).backward()
        before_step(optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return [whole(p.detach()).clone() for p in model.parameters()], optimizer


def alone(seed: int = 0, period: int = 1, clip: float | None = None) -> list[Tensor]:
    """Train the copies in one process: they step by themselves, and are averaged every so many steps."""
    models = [Block(seed) for _ in range(COPIES if period > 1 else 1)]
    optimizers = [optimizer_of(model) for model in models]
    for step in range(STEPS):
        for copy in range(COPIES):
            (loss_of(models[copy % len(models)], seed, step, copy) * len(models) / COPIES).backward()
        for model, optimizer in zip(models, optimizers, strict=True):
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % period == 0:
            for parameters in zip(*(model.parameters() for model in models), strict=True):
                mean = torch.stack([p.detach() for p in parameters]).mean(0)
                for parameter in parameters:
                    parameter.data.copy_(mean)
    return [p.detach() for p in models[0].parameters()]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def on_the_mesh(function: Callable[[], Any]) -> list[Any]:
    return laconic.simulate(function, COPIES * PARTS).results

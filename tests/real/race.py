"""Train the same thing twice in the same processes, by DDP and by laconic, and compare the bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from tests.real.pool import PoolRank

Step = Callable[[nn.Module, torch.optim.Optimizer, int, int], None]
"""(model, optimizer, rank, step): one whole training step, whatever the trap needs."""


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


def by_ddp(
    member: PoolRank,
    build: Callable[[], nn.Module],
    step: Step,
    steps: int = 50,
    optimizer: Any = sgd,
    **options: Any,
) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model = build()
    ddp = DistributedDataParallel(model, process_group=member.process_group, **options)
    made = optimizer(model.parameters())
    torch.manual_seed(100 + member.rank)
    for k in range(steps):
        step(ddp, made, member.rank, k)
    return _state(model)


def by_laconic(
    member: PoolRank,
    build: Callable[[], nn.Module],
    step: Step,
    steps: int = 50,
    optimizer: Any = sgd,
    strategy: str = "bsp",
    **options: Any,
) -> dict[str, Tensor]:
    torch.manual_seed(1 if member.rank == 0 else 999)  # rank 0's numbers must reach everyone
    model = build()
    made = optimizer(model.parameters())
    model, made = laconic.distribute(model, made, strategy, process_group=member.process_group, **options)
    torch.manual_seed(100 + member.rank)
    for k in range(steps):
        step(model, made, member.rank, k)
    state = _state(model)
    laconic.undistribute(model, made)
    return state


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The largest relative difference of any parameter; 0.0 means the same bits."""
    assert a.keys() == b.keys()
    worst = 0.0
    for name in a:
        if not torch.equal(a[name], b[name]):
            x, y = a[name].double(), b[name].double()
            scale = x.abs().max().clamp(min=1e-30)
            worst = max(worst, float((x - y).abs().max() / scale), 1e-300)
    return worst


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}

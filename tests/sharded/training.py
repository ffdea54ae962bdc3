"""A small sharded training, the same on both engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.worker import Kind


def blocks(seed: int = 0, width: int = 17) -> nn.Sequential:
    """Three blocks whose tensors no number of workers divides."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, 29), nn.GELU(), nn.Linear(29, width)) for _ in range(3)), nn.LayerNorm(width)
    )


def batch(rank: int, step: int, width: int = 17) -> tuple[Tensor, Tensor]:
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(1000 * rank + step))
    return x, torch.sin(2 * x).flip(1)


def sharded(mesh: Any, seed: int = 0, **how: Any) -> nn.Module:
    """The blocks, each sharded by itself, and what is around them."""
    model = blocks(seed)
    for block in list(model)[:3]:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


def whole_parameters(model: nn.Module, gather: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """All parameters of a sharded model, from every worker's shards."""
    found = []
    for parameter in model.parameters():
        local: Tensor = parameter.detach().to_local()  # type: ignore[attr-defined]
        chunk = -(-parameter.shape[0] // parameter.device_mesh.size())  # type: ignore[attr-defined]
        padded = local.new_zeros(chunk, *parameter.shape[1:])
        padded[: len(local)] = local
        found.append(gather(padded).flatten(0, 1)[: parameter.shape[0]].clone())
    return found


def steps_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    rank: int,
    before: Callable[[int], None] = lambda s: None,
) -> list[float]:
    """Train for some steps and return the losses."""
    losses = []
    for step in range(steps):
        before(step)
        x, y = batch(rank, step)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(
    strategy: str, steps: int = 6, weights: str | None = None, lr: float = 1e-2, **how: Any
) -> tuple[list[float], list[Tensor], float]:
    """Train on this worker, sharded over all; return losses, whole parameters and the payload bytes it sent."""
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    model = sharded(mesh, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model, optimizer = laconic.distribute(model, optimizer, strategy, weights=weights)
    worker = optimizer.session.worker  # type: ignore[attr-defined]
    start = worker.ledger.sent_bytes(Kind.PAYLOAD)
    losses = steps_of(model, optimizer, steps, laconic.rank())
    sent = worker.ledger.sent_bytes(Kind.PAYLOAD) - start
    group = worker.adopt(mesh.get_group())
    return losses, whole_parameters(model, lambda x: group.all_gather(x, control=1.0).wait()), sent

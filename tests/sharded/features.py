"""Models that use what `fully_shard` offers, each with the way it is sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.utils.checkpoint import checkpoint

from tests.sharded.training import blocks


def in_blocks(model: Any, mesh: Any, **how: Any) -> nn.Module:
    for part in list(model)[:-1]:
        fully_shard(part, mesh=mesh, **how)
    return fully_shard(model, mesh=mesh, **how)


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return y


class Tied(nn.Sequential):
    """The last layer has the weights of the first."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = nn.functional.linear(super().forward(x), self[0].weight)
        return y


def checkpointed() -> nn.Module:
    *parts, norm = blocks()
    return nn.Sequential(*(Checkpointed(*part) for part in parts), norm)


def tied() -> nn.Module:
    torch.manual_seed(1)
    return Tied(nn.Linear(17, 17, bias=False), *blocks())


def partly_frozen() -> nn.Module:
    model = blocks()
    model[0][0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    return model


def narrow() -> nn.Module:
    """Fewer rows than workers."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(17, 1), nn.Linear(1, 3), nn.Linear(3, 17), nn.LayerNorm(17))


def of_one_owner() -> nn.Module:
    """One row: all but the first worker have nothing."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(17, 1), nn.Identity())


def even() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Sequential(nn.Linear(17, 32), nn.GELU(), nn.Linear(32, 17)), nn.LayerNorm(17))


def by_columns(model: Any, mesh: Any) -> nn.Module:
    return in_blocks(model, mesh, shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 and p.shape[1] == 32 else None)


def offloaded(model: Any, mesh: Any) -> nn.Module:
    return in_blocks(model, mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


def together_as_one(model: Any, mesh: Any) -> nn.Module:
    """Two blocks in one call, which share their messages."""
    fully_shard([model[0], model[1]], mesh=mesh)
    return fully_shard(model, mesh=mesh)


FEATURES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Any], nn.Module]]] = {
    "activation checkpointing": (checkpointed, in_blocks),
    "tied": (tied, lambda model, mesh: fully_shard(model, mesh=mesh)),
    "frozen": (partly_frozen, in_blocks),
    "fewer rows than workers": (narrow, in_blocks),
    "nothing on some workers": (of_one_owner, in_blocks),
    "columns": (even, by_columns),
    "offload": (blocks, offloaded),
    "several modules together": (blocks, together_as_one),
}

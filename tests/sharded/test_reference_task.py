"""What coded gradients and weights of shards do to the loss of the reference task."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.runtime.sharded import gather
from tests.real.pool import Pool, PoolRank
from tests.sync.digits import data

pytestmark = pytest.mark.long
SEEDS = (0, 1, 2)


def losses(member: PoolRank, strategy: str, weights: str | None, steps: int, coarse: bool) -> list[float]:
    """The loss on all training images at the end, of each seed."""
    before = gather._COARSE_BITS
    gather._COARSE_BITS = 0 if coarse else before
    try:
        return [_loss(member, strategy, weights, steps, seed) for seed in SEEDS]
    finally:
        gather._COARSE_BITS = before


def _loss(member: PoolRank, strategy: str, weights: str | None, steps: int, seed: int) -> float:
    images, labels, _, _ = data()
    x, y = images[member.rank :: member.size], labels[member.rank :: member.size]
    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    mesh = init_device_mesh("cpu", (member.size,), mesh_dim_names=("shard",))
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer = laconic.distribute(model, optimizer, strategy, weights=weights)
    draws = torch.Generator().manual_seed(100 * seed + member.rank)
    for _ in range(steps):
        chosen = torch.randint(len(x), (16,), generator=draws)
        loss = F.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        whole = F.cross_entropy(model(x), y)
    return float(laconic.mean(float(whole)))


def mean_loss(pool: Pool, strategy: str, weights: str | None = None, steps: int = 500, coarse: bool = False) -> float:
    (first, *_) = pool.run(losses, strategy, weights, steps, coarse, workers=4)
    return math.fsum(first) / len(first)

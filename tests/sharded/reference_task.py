"""The reference task on a sharded model: digits from whose pixels their means are subtracted, and four virtual workers.

With pixels that are never negative the gradients of the first layer have one sign, which suits some codecs and not
others.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import laconic
from tests.sync import digits

STEPS, BATCH = 500, 16
RATE = 3e-3  # as elsewhere on digits: at the best rate the loss vanishes, and a ratio of losses says little


@cache
def loss(strategy: str, seed: int, weights: str | None = None, centred: bool = True) -> float:
    """The loss on all training images, after training with Adam, of the weights that all workers gather."""
    images, labels, _, _ = digits.data()
    images = images - images.mean(0) if centred else images

    def body() -> float:
        rank, size = laconic.rank(), laconic.size()
        mesh: Any = laconic.init_device_mesh("cpu", (size,), mesh_dim_names=("shard",))
        torch.manual_seed(seed)
        model: Any = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        model = fully_shard(model, mesh=mesh)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=RATE)
        model, optimizer = laconic.distribute(model, optimizer, strategy, mesh=mesh, weights=weights)
        mine, draw = torch.arange(rank, len(labels), size), torch.Generator().manual_seed(1000 * seed + rank)
        for _ in range(STEPS):
            chosen = mine[torch.randint(len(mine), (BATCH,), generator=draw)]
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            return functional.cross_entropy(model(images), labels).item()

    first, *others = laconic.simulate(body, 4).results
    assert all(other == first for other in others)
    return first

"""The reference task on a sharded model: digits, and a network wide enough that the loss does not depend on which of
its units die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

import laconic
from tests.sync import digits

BATCH = 16


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def trained(
    strategy: str,
    steps: int,
    make: digits.Make,
    seed: int,
    hosts: int = 1,
    weights: str | None = None,
    prepare: Callable[[Any], None] = lambda session: None,
) -> float:
    """Train on this worker as `digits.train` does, with a model that is sharded over all; the loss on all training
    images of the model as it is used, with gathered weights."""
    images, labels, _, _ = digits.data()
    rank, size = laconic.rank(), laconic.size()
    mesh: Any = laconic.init_device_mesh("cpu", (hosts, size // hosts), mesh_dim_names=("host", "node"))
    flat = mesh._flatten("all")
    model: Any = fully_shard(network(seed), mesh=flat, reshard_after_forward=True)
    optimizer: Any = make(model.parameters())
    model, optimizer = laconic.distribute(model, optimizer, strategy, mesh=mesh if hosts > 1 else flat, weights=weights)
    prepare(optimizer.session)
    mine, draw = torch.arange(rank, len(labels), size), torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(steps):
        chosen = mine[torch.randint(len(mine), (BATCH,), generator=draw)]
        functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return functional.cross_entropy(model(images), labels).item()


def losses(strategy: str, steps: int, make: digits.Make, workers: int, seeds: int, **more: Any) -> list[float]:
    """The loss of each seed, which is the same on all workers."""
    found = []
    for seed in range(seeds):
        results = laconic.simulate(lambda seed=seed: trained(strategy, steps, make, seed, **more), workers).results
        assert len(set(results)) == 1
        found.append(results[0])
    return found

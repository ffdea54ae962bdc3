"""A small parameter server's shard, for tests that look at its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laconic.architecture.server.actor import Shard
from laconic.architecture.server.sharding import even
from laconic.architecture.server.store import Store
from laconic.compression.none import Identity
from laconic.runtime.meeting import Meeting
from laconic.sync.asp import ASP
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import ActorMessage

SHAPES = ((4, 3), (5,))
ELEMENTS = 17


def shard(workers: int = 2, momentum: float = 0.5) -> Shard:
    """Return a shard that runs asynchronous SGD on 17 zeros; each push steps with its share of the learning rate, 1."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    specs = [TensorSpec(f"p{i}", shape, torch.float32, "matrix") for i, shape in enumerate(SHAPES)]
    optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=momentum)
    store = Store(even(specs, 1), specs, parameters, optimizer, workers)
    made = Shard(store, ASP(), Identity(), lambda rank, name, step: Meeting(rank, 1, step, name, 0), "digest")
    made.write(0, ActorMessage("plant", {}, (torch.zeros(ELEMENTS),)))
    return made


def push(value: float = 1.0) -> ActorMessage:
    return ActorMessage("push", {"version": 0, "step": 0}, (torch.full((ELEMENTS,), value),))


def values(of: Shard) -> Tensor:
    (flat,) = of.store.flat_copy()
    return flat

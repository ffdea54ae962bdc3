"""LoCo on a sharded model: the memory belongs to a worker's whole gradient, of which four bits a value are sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import laconic
from laconic.runtime.sharded.layout import ShardLayout
from laconic.worker import Kind
from tests.cases import first_of
from tests.sharded.training import blocks, sharded, steps_of

LOCO = "strided_bits(4, 128)+loco"


def flat_lengths(workers: int) -> list[int]:
    """The number of values of each module's flat gradient."""
    parts = [list(block.parameters()) for block in blocks()]
    return [ShardLayout(tuple(tuple(p.shape) for p in ps), (0,) * len(ps), workers).numel for ps in parts]


def kept_and_sent() -> tuple[int, float]:
    """Train on this worker; return the bytes of its memory, and those that gradients take in a step."""
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    model: Any = sharded(mesh, reshard_after_forward=False)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = laconic.distribute(model, optimizer, LOCO)
    ledger = optimizer.session.worker.ledger
    counted: list[float] = []
    steps_of(model, optimizer, 3, laconic.rank(), lambda _: counted.append(ledger.sent_bytes(Kind.PAYLOAD)))
    (memory,) = optimizer.session.sockets.state_dict()["memory"]
    weights = 4 * sum(flat_lengths(laconic.size())) * (laconic.size() - 1) / laconic.size()  # gathered once
    return sum(x.nbytes for entries in memory.values() for x in entries.values() if x.ndim), (
        counted[2] - counted[1] - weights
    )


@pytest.mark.technique("loco_adaptor", check=2)
@pytest.mark.parametrize("workers", first_of([3, 2, 4], 1))
def test_on_a_sharded_model_the_memory_is_a_byte_and_gradients_half_of_one(workers: int) -> None:
    """A scale of 4 bytes for 1,024 values of the memory, and one of 2 bytes for 128 values of an owner's part."""
    lengths = flat_lengths(workers)
    parts = [n // workers for n in lengths]
    memory = sum(n + 4 * -(-n // 1024) for n in lengths)
    message = sum(-(-part // 2) + 2 * -(-part // 128) for part in parts)
    for kept, sent in laconic.simulate(kept_and_sent, workers).results:
        assert kept == memory
        assert sent == (workers - 1) * message

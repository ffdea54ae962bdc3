"""Sharded training sends as many bytes as PyTorch's own, counted in the operations that PyTorch dispatches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import laconic
from laconic.worker import Kind
from tests.real.handed_over import HandedOver
from tests.real.pool import Pool, PoolRank
from tests.sharded.training import blocks

WIDTH = 24
"""Divided by the number of workers, as are the 96 inside: FullyShardedDataParallel pads a block, `fully_shard` pads
each tensor of it."""


def even_blocks() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)) for _ in range(3)))


def in_bf16(group: dist.ProcessGroup, gradient: Tensor, shard: Tensor) -> None:
    """A communication hook of FullyShardedDataParallel: the sum of gradients in 16 bits, to their owners."""
    short = torch.empty_like(shard, dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(short, gradient.bfloat16(), group=group)
    shard.copy_(short)


def in_float32(group: dist.ProcessGroup, gradient: Tensor, shard: Tensor) -> None:
    """Such a hook that sends gradients as they are."""
    dist.reduce_scatter_tensor(shard, gradient, group=group)


HOOKS = {"none": in_float32, "bf16": in_bf16}


def sent_in_a_step(model: Any, optimizer: Any, width: int) -> tuple[int, int]:
    """The bytes of weights and of gradients that this process sends in the second of two steps."""
    for step in range(2):
        x = torch.randn(4, width, generator=torch.Generator().manual_seed(step))
        with HandedOver() as sent:
            model(x).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
    return sent.total("gather"), sent.total("scatter")


def with_a_hook(member: PoolRank, words: str) -> tuple[int, int]:
    """FullyShardedDataParallel and a communication hook."""
    how = {"process_group": member.process_group, "device_id": torch.device("cpu")}
    parts = (FullyShardedDataParallel(part, **how) for part in even_blocks())  # type: ignore[arg-type]
    model = FullyShardedDataParallel(nn.Sequential(*parts), **how)  # type: ignore[arg-type]
    model.register_comm_hook(member.process_group, HOOKS[words])
    return sent_in_a_step(model, torch.optim.SGD(model.parameters(), lr=0.1), WIDTH)


def by_fully_shard(member: PoolRank, even: bool, words: str | None) -> tuple[int, int, float]:
    """The model that `fully_shard` has sharded, as it is or, given words, distributed; also what the ledger counts."""
    mesh = DeviceMesh.from_group(member.process_group, "cpu", mesh_dim_names=("shard",))
    model: Any = even_blocks() if even else blocks()
    for part in (*model, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if words is None:
        return *sent_in_a_step(model, optimizer, WIDTH if even else 17), 0.0
    model, optimizer = laconic.distribute(model, optimizer, words, process_group=member.process_group)
    ledger = optimizer.session.worker.ledger
    before = ledger.sent_bytes(Kind.PAYLOAD)
    found = sent_in_a_step(model, optimizer, WIDTH if even else 17)
    return *found, (ledger.sent_bytes(Kind.PAYLOAD) - before) / 2


@pytest.mark.technique("zero_sharded_dp", check=3)
@pytest.mark.parametrize("words", HOOKS)
def test_stage_three_sends_what_pytorchs_own_sends_with_a_communication_hook(pool: Pool, words: str) -> None:
    """Weights forward and backward, and gradients as the hook says."""
    native = pool.run(with_a_hook, words, workers=4)
    n = sum(p.numel() for p in even_blocks().parameters())
    assert native == [(2 * 3 * n, 3 * n // 4 * (4 if words == "none" else 2))] * 4
    ours = pool.run(by_fully_shard, True, words, workers=4)
    assert [(weights, gradients) for weights, gradients, _ in ours] == native
    assert all(counted == weights + gradients for weights, gradients, counted in ours)


@pytest.mark.technique("zero_sharded_dp", check=3)
@pytest.mark.parametrize("workers", [2, 3])
def test_tensors_are_padded_as_pytorchs_own_pads_them(pool: Pool, workers: int) -> None:
    native = pool.run(by_fully_shard, False, None, workers=workers)
    ours = pool.run(by_fully_shard, False, "zero", workers=workers)
    assert [found[:2] for found in ours] == [found[:2] for found in native]
    assert all(counted == weights + gradients > 0 for weights, gradients, counted in ours)

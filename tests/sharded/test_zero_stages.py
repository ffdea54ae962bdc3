"""ZeRO's three stages by their costs: what a worker sends in a step, and what it keeps of a model's state."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import laconic
from laconic.cost.sharded_memory import model_state
from laconic.parallel.fsdp.mesh import parameter_group, sharded_modules
from laconic.worker import Kind

WIDTH = 64  # which all numbers of workers here divide: nothing is padded


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)))


def staged(stage: int) -> tuple[Any, Any]:
    """A model and its optimizer in mixed precision: Adam on shards in float32, products in bf16."""
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    model: Any = network()
    for part in (*model, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return laconic.distribute(model, optimizer, "zero")


def loss(model: Any, part: int) -> Tensor:
    x = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(10 * laconic.rank() + part))
    found: Tensor = model(x).float().square().mean()
    return found


def held(tensors: Iterable[Any]) -> int:
    """The bytes of the memory that tensors lie in, each piece once."""
    plain = [getattr(x, "to_local", lambda x=x: x)() for x in tensors if x is not None]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in plain}.values())


def of_two_micro_batches(stage: int) -> tuple[int, float]:
    """Train on this worker; return the bytes of weights, gradients and optimizer states that it holds when the second
    of two micro-batches has gone forward, and the values that it sends in a step of one.

    Gradients of stage 1 stay whole until the last micro-batch; those of later stages go to their owners at once.
    """
    model, optimizer = staged(stage)
    ledger = optimizer.session.worker.ledger
    for _ in range(2):
        before = ledger.sent_bytes(Kind.PAYLOAD)
        loss(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        sent = ledger.sent_bytes(Kind.PAYLOAD) - before
    with model.no_sync() if stage == 1 else nullcontext():
        loss(model, 0).backward()
    second = loss(model, 1)
    own = [p for module in sharded_modules(model).values() for p in parameter_group(module).fsdp_params]
    whole = [p._unsharded_param for p in own]
    states = [x for entries in optimizer.state.values() for x in entries.values() if x.ndim]
    kept = [*model.parameters(), *(p.sharded_param for p in own), *whole, *states]
    gradients = [p.grad for p in (*(p.sharded_param for p in own), *whole)]
    found = held([*kept, *gradients])
    second.backward()
    return found, sent / 2  # bytes of bf16


@pytest.mark.technique("zero_sharded_dp", check=2)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("workers", [4, pytest.param(64, marks=pytest.mark.long)])
def test_a_worker_sends_and_keeps_what_the_formulas_of_its_stage_say(stage: int, workers: int) -> None:
    """Within 2 % of 4 + 12/P, 2 + 14/P and 16/P bytes a parameter for 64 workers, ZeRO's own example. In stage 2
    PyTorch keeps gradients of shards in float32, which is 2/P bytes more."""
    n = sum(p.numel() for p in network().parameters())
    expected = model_state(n, workers, stage).state
    more = 2 * n / workers if stage == 2 else 0
    for kept, sent in laconic.simulate(lambda: of_two_micro_batches(stage), workers).results:
        assert sent == {1: 2, 2: 2, 3: 3}[stage] * n * (workers - 1) / workers
        assert kept == expected + more
        assert workers < 64 or kept == pytest.approx(expected, rel=0.02)

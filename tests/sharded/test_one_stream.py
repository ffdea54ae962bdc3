"""Sharded models of virtual workers: each worker's step is computed in one thread and one stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import laconic
from laconic.parallel.fsdp.one_stream import OneStream

WIDE, NARROW = 24, 16


def sharded(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = laconic.init_device_mesh(device, (laconic.size(),), mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(WIDE, NARROW), nn.ReLU(), nn.Linear(NARROW, WIDE)).to(device)
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return laconic.distribute(model, torch.optim.SGD(model.parameters(), 0.1), "int8(128)", weights="int8(128)")


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, device: str, steps: int = 6) -> list[float]:
    found = []
    for step in range(steps):
        draw = torch.Generator().manual_seed(10 * step + laconic.rank())
        x = torch.randn(8, WIDE, generator=draw).to(device)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_all_streams_are_the_current_one_and_gradients_have_no_thread_of_their_own() -> None:
    def work() -> tuple[bool, bool]:
        model, optimizer = sharded("cpu")
        losses(model, optimizer, "cpu", steps=1)
        model, optimizer = laconic.undistribute(model, optimizer)
        model, optimizer = laconic.distribute(model, optimizer, "int8(128)")  # what has computed before is taken, too
        losses(model, optimizer, "cpu", steps=1)
        context: Any = model._get_fsdp_state()._comm_ctx  # type: ignore[operator]
        here = context.device_handle.current_stream()
        streams = (context.all_gather_copy_in_stream, context.all_gather_stream, context.reduce_scatter_stream)
        one = isinstance(context, OneStream) and all(stream is here for stream in (*streams, context.all_reduce_stream))
        return one, torch._C._is_multithreading_enabled()  # type: ignore[attr-defined]

    assert laconic.simulate(work, 2).results == [(True, False)] * 2
    assert torch._C._is_multithreading_enabled(), "the thread that simulates keeps its own"  # type: ignore[attr-defined]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_virtual_workers_on_a_gpu_learn_what_they_learn_on_the_processor() -> None:
    here, there = (
        laconic.simulate(lambda device=device: losses(*sharded(device), device), 4).results  # type: ignore[misc]
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        assert one == pytest.approx(other, rel=1e-3)

"""What tests of Accelerate's FSDP2 run under torchrun: `python accelerate_fsdp2_scripts.py NAME FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import laconic
from laconic.integrations.accelerate import prepare
from laconic.parallel.fsdp.session import ShardedSession
from tests.integrations.sharding_on_cpus import shard_on_cpus

FOLDER = Path(sys.argv[2])


def accelerator(version: int = 2) -> Accelerator:
    shard_on_cpus()
    return Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=version))


def prepared(ready: Accelerator, strategy: str, **options: Any) -> tuple[Any, Any]:
    ready.free_memory()  # it forgets what it has prepared before
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(17, 29), nn.GELU(), nn.Linear(29, 17))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = prepare(ready, strategy, model, optimizer, **options)
    return model, optimizer


def losses(accelerator: Accelerator, model: Any, optimizer: Any, steps: range) -> list[float]:
    found = []
    for step in steps:
        x = torch.randn(8, 17, generator=torch.Generator().manual_seed(100 * step + laconic.rank()))
        loss = (model(x) - x.flip(1)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def sent_and_remembered() -> None:
    """Shards send what the strategy says, and both kinds of checkpoints are read again."""
    ready = accelerator()
    model, optimizer = prepared(ready, "none")
    assert isinstance(model, FSDPModule) and all(isinstance(p, DTensor) for p in model.parameters())
    assert isinstance(optimizer.optimizer.session, ShardedSession)
    before = laconic.traffic().payload_bytes
    losses(ready, model, optimizer, range(1))
    dense = laconic.traffic().payload_bytes - before

    model, optimizer = prepared(ready, "strided_bits(2, 128)+ef", weights="int8(256)")
    before = laconic.traffic().payload_bytes
    losses(ready, model, optimizer, range(1))
    assert laconic.traffic().payload_bytes - before < dense / 4
    losses(ready, model, optimizer, range(1, 4))
    laconic.checkpoint(FOLDER / "laconic", model, optimizer.optimizer)
    ready.save_state(str(FOLDER / "accelerate"))
    undisturbed = losses(ready, model, optimizer, range(4, 8))

    model, optimizer = prepared(ready, "strided_bits(2, 128)+ef", weights="int8(256)")
    laconic.resume(FOLDER / "laconic", model, optimizer.optimizer)
    assert losses(ready, model, optimizer, range(4, 8)) == undisturbed
    ready.load_state(str(FOLDER / "accelerate"))  # the model and its optimizer, without memory
    forgotten = losses(ready, model, optimizer, range(4, 8))
    assert forgotten[0] == undisturbed[0] and forgotten != undisturbed


def refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        prepare(accelerator(version=1), "bsp", model, optimizer)
    except laconic.ContractError as error:
        assert "this Accelerator is one for FSDP" in str(error) and "fsdp_version=2" in str(error)
        return
    raise AssertionError("nothing was refused")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print(f"passed {sys.argv[1]}")

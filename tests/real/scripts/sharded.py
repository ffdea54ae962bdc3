"""A sharded training as a user would write it, but small: it writes checkpoints and prints its losses."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import laconic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=4, help="checkpoint after so many steps")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(19, 64), nn.Tanh(), nn.Linear(64, 19)) for _ in range(2)))
    mesh = laconic.init_device_mesh("cpu", (laconic.size(),), mesh_dim_names=("shard",))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    how = {"strategy": "strided_bits(4, 128)+ef", "weights": "int8(256)"}
    sharded, optimizer = laconic.distribute(model, optimizer, **how)  # type: ignore[arg-type]
    print(f"pid {os.getpid()}", flush=True)
    begin = laconic.resume(options.checkpoint, sharded, optimizer).get("step", 0)
    print(f"begins at step {begin}", flush=True)
    torch.manual_seed(laconic.rank())
    for step in range(begin, options.steps):
        x = torch.randn(64, 19)
        loss = (sharded(x) - x.flip(1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item()}\nstep {step}", flush=True)
        if (step + 1) % options.every == 0:
            laconic.checkpoint(options.checkpoint, sharded, optimizer, step=step + 1)


main()

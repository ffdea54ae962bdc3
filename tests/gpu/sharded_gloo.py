"""Two processes that share a GPU and speak gloo: a sharded model's coded training has the bits of the same on the CPU.

    python -m tests.gpu.sharded_gloo

Gradients are constants that both devices hold exactly, so that only what this library computes could differ. Prints a
line for each way of coding, and ends with 1 if one differs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import laconic

RANKS = 2
STEPS = 3
SIZES = (4352, 777)  # with rows that are whole blocks, and with others
ROWS: tuple[tuple[str, str | None, torch.dtype | None], ...] = (
    ("none", None, None),
    ("int8(256)", None, None),
    ("int8(256)", "int8(256)", None),
    ("int4(128)", "int8(256)", None),
    ("int4(128)", "int8(256)", torch.bfloat16),
    ("int4(128)+ef", "int8(256)", None),
    ("int4(128)+loco", "int8(256)", None),
    ("int4(128)+loco", "int8(256)", torch.bfloat16),
    ("strided_bits(4, 128)+loco", None, None),
    ("mx_block_codecs(mxfp8)", "mx_block_codecs(mxfp8)", torch.bfloat16),
)
"""How gradients and weights are sent, and in which type they are computed."""


class Constant(nn.Module):
    """A module whose parameter's gradient is given."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, numel))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def train(gradients: str, weights: str | None, computed: torch.dtype | None, device: str) -> list[Tensor]:
    """Take a few steps, and return this rank's shards of the parameters, and what it remembers."""
    model: Any = nn.ModuleList(map(Constant, SIZES)).to(device)
    mesh = DeviceMesh.from_group(dist.group.WORLD, device, mesh_dim_names=("shard",))  # `init_device_mesh` takes NCCL
    for part in model:
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(computed, computed))
    hooks = [laconic.fsdp_hooks(part, gradients, weights, seed=7) for part in model]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    draws = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        for part in model:
            part(torch.randn(part.weight.shape, generator=draws).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    memory = [
        m for one in hooks for tier in one.state_dict()["memory"] for entries in tier.values() for m in entries.values()
    ]
    for one in hooks:
        one.remove()
    return [x.detach().cpu().clone() for x in (*(p.to_local() for p in model.parameters()), *memory)]


def rank_main(folder: Path, device: str) -> None:
    """What each rank does: keep the shards of every row, or why there are none."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    found: list[Any] = []
    for row in ROWS:
        try:
            found.append(train(*row, device))
        except Exception:
            found.append(traceback.format_exc()[-800:])
    torch.save(found, folder / f"{device}-{dist.get_rank()}.pt")
    os._exit(0)


def main() -> int:
    """Start the ranks on the CPU and on the GPU, and compare what each rank has."""
    with tempfile.TemporaryDirectory() as folder:
        for device in ("cpu", "cuda"):
            _run(Path(folder), device)
        cpu, cuda = (
            [torch.load(Path(folder) / f"{device}-{rank}.pt") for rank in range(RANKS)] for device in ("cpu", "cuda")
        )
    bad = False
    for i, row in enumerate(ROWS):
        said = [_compared(a[i], b[i]) for a, b in zip(cpu, cuda, strict=True)]
        bad |= any(word != "equal" for word in said)
        print(f"{row}: {', '.join(said)}")
    return int(bad)


def _compared(expected: Any, found: Any) -> str:
    for one in (expected, found):
        if isinstance(one, str):
            return "failed: " + one
    if [x.shape for x in expected] != [x.shape for x in found]:
        return "differs in shapes"
    if all(map(torch.equal, expected, found)):
        return "equal"
    apart = [float((a.double() - b.double()).abs().max()) for a, b in zip(expected, found, strict=True)]
    return f"differs by {', '.join(f'{each:.2e}' for each in apart)}"


def _run(folder: Path, device: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        "LACONIC_GLOO_RANK": device, "LACONIC_FOLDER": str(folder),
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.sharded_gloo"],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": "0"},
        )
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            process.wait(timeout=200)
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    if "LACONIC_GLOO_RANK" in os.environ:
        rank_main(Path(os.environ["LACONIC_FOLDER"]), os.environ["LACONIC_GLOO_RANK"])
    sys.exit(main())

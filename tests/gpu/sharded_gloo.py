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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laconic

RANKS = 2
STEPS = 3
ROWS = (
    ("none", None),
    ("int8(256)", None),
    ("int8(256)", "int8(256)"),
    ("int4(128)", "int8(256)"),
    ("int4(128)+ef", "int8(256)"),
    ("int4(128)+loco", "int8(256)"),
    ("strided_bits(4, 128)+loco", None),
    ("mx_block_codecs(mxfp8)", "mx_block_codecs(mxfp8)"),
)


class Constant(nn.Module):
    """A module whose parameter's gradient is given."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, numel))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def train(gradients: str, weights: str | None, device: str) -> list[Tensor]:
    """Take a few steps, and return the whole parameters."""
    model: Any = nn.ModuleList([Constant(1000), Constant(777)]).to(device)
    mesh = init_device_mesh(device, (RANKS,))
    for part in model:
        fully_shard(part, mesh=mesh)
    hooks = [laconic.fsdp_hooks(part, gradients, weights, seed=7) for part in model]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    draws = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        for part in model:
            part(torch.randn(part.weight.shape, generator=draws).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one in hooks:
        one.remove()
    return [p.detach().full_tensor().cpu() for p in model.parameters()]


def rank_main(folder: Path, device: str) -> None:
    """What each rank does: keep the parameters of every row, or why there are none."""
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
    """Start the ranks on the CPU and on the GPU, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        for device in ("cpu", "cuda"):
            _run(Path(folder), device)
        reference, *others = [
            torch.load(Path(folder) / f"{device}-{rank}.pt") for device in ("cpu", "cuda") for rank in range(RANKS)
        ]
    bad = False
    for i, row in enumerate(ROWS):
        said = _compared(reference[i], [other[i] for other in others])
        bad |= said != "equal"
        print(f"{row}: {said}")
    return int(bad)


def _compared(reference: Any, others: list[Any]) -> str:
    for found in (reference, *others):
        if isinstance(found, str):
            return "failed: " + found
    apart = max(float((a - b).abs().max()) for other in others for a, b in zip(other, reference, strict=True))
    return "equal" if apart == 0 else f"differs by {apart:.2e}"


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

"""What coding costs a sharded step on one GPU: FSDP2 of a billion parameters, one rank of eight.

    python bench/sharded_gpu.py                               # 24 layers of width 2,048 on a GPU
    python bench/sharded_gpu.py --layers 2 --width 64 --device cpu

The group is PyTorch's `fake` one: this rank computes, encodes and decodes as one of eight, and nothing is sent, so that
a row's time above `native`'s is what this library adds to the computing. Rows take turns in one process, and medians
are shown, with the memory that a row allocates beside PyTorch's own for each parameter of the model.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import laconic

ROWS = {
    "native": (None, None),
    "none": ("none", None),
    "int8 both": ("int8(256)", "int8(256)"),
    "ZeRO++": ("int4(128)", "int8(256)"),
    "ZeRO++ with loco": ("int4(128)+loco", "int8(256)"),
    "mxfp8 gathers": ("int4(128)+loco", "mx_block_codecs(mxfp8)"),
}


class Block(nn.Module):
    """A layer of a transformer that attends to what came before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 128, 1)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        parts = (part.view(shape).transpose(1, 2) for part in self.attention(self.before(x)).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.merge(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """Layers between an embedding and its transpose."""

    def __init__(self, layers: int, width: int, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.last = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.last(x).flatten(0, 1), tokens.flatten())


class Trained:
    """One row: a sharded model that takes steps."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        mesh = init_device_mesh(given.device, (dist.get_world_size(),), mesh_dim_names=("shard",))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)
        with torch.device(given.device):
            model: Any = Model(given.layers, given.width)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.model: Any = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        gradients, weights = ROWS[name]
        self.hooks = None if gradients is None else laconic.fsdp_hooks(self.model, gradients, weights)
        self._tokens = torch.randint(32000, (given.batch, given.context), device=given.device)
        self._device, self._loss = given.device, torch.tensor(torch.nan)

    def seconds(self, steps: int) -> float:
        """Return the time of a step."""
        self._wait()
        begin = time.perf_counter()
        for _ in range(steps):
            self._loss = self.model(self._tokens)
            self._loss.backward()
            for parameter in self.model.parameters():
                parameter.grad.to_local().zero_()  # what a fake group hands over may be no number
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._wait()
        return (time.perf_counter() - begin) / steps

    @property
    def loss(self) -> float:
        """The last step's: where it is no number, products take less time on a GPU, and rows do not compare."""
        return self._loss.item()

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


def measure(name: str, given: argparse.Namespace) -> dict[str, float]:
    """Return a row's time and the bytes of memory that its training holds at most and between steps."""
    row = Trained(name, given)
    row.seconds(2)  # compiles kernels and makes memories
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [row.seconds(given.steps) for _ in range(given.repeats)]
    cuda = given.device == "cuda"
    found = {
        "seconds": statistics.median(times),
        "spread": max(times) - min(times),
        "peak": float(torch.cuda.max_memory_allocated()) if cuda else 0.0,
        "held": float(torch.cuda.memory_allocated()) if cuda else 0.0,
        "parameters": float(row.parameters),
        "loss": row.loss,
    }
    if row.hooks is not None:
        row.hooks.remove()
    del row
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of the fake group")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turns", type=int, default=2, help="how often the rows take turns")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    given = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("fake", rank=0, world_size=given.ranks, store=FakeStore())
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    for turn in range(given.turns):
        for name, rows in found.items():
            rows.append(measure(name, given))
            print(f"{turn} {name}: {1e3 * rows[-1]['seconds']:.1f} ms", file=sys.stderr, flush=True)
    first = found["native"]
    base = statistics.median(row["seconds"] for row in first)
    size, tokens = first[0]["parameters"] / 1e9, given.batch * given.context
    print(f"{size:.2f} B parameters, rank 0 of {given.ranks}, {tokens} tokens")
    for name, rows in found.items():
        seconds = statistics.median(row["seconds"] for row in rows)
        held = (rows[-1]["held"] - first[-1]["held"]) / first[0]["parameters"]
        peak = (rows[-1]["peak"] - first[-1]["peak"]) / first[0]["parameters"]
        print(
            f"{name:18} {1e3 * seconds:8.2f} ms  {100 * (seconds / base - 1):+6.2f} %  memory {held:+.3f} B a parameter"
            f" between steps, {peak:+.3f} at most, loss {rows[-1]['loss']:.3f}"
        )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

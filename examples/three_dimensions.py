"""A small transformer on a mesh: stages of a pipeline, copies of it, and matrices that are cut.

    laconic run --workers 8 examples/three_dimensions.py --pp 2 --dp 2 --tp 2
    python examples/three_dimensions.py --pp 1 --dp 1 --tp 1    # the same training in one process

The losses are the same, whatever the mesh.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.parallel.pipeline.schedule import named
from laconic.parallel.tensor.megatron import shard_tensors
from laconic.real.connect import connect

WIDTH, HEADS, CONTEXT, VOCABULARY, BATCH = 32, 4, 16, 20, 16


class Attention(nn.Module):
    """Causal attention; how many heads there are follows from what this device computes."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.up, self.down = Attention(), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]


CUTS: dict[str, Any] = {
    "*.attention": "shared",
    "*.attention.query": "columns",
    "*.attention.key": "columns",
    "*.attention.value": "columns",
    "*.attention.out": "rows",
    "*.up": "columns",
    "*.down": "rows",
}


def stages(count: int) -> list[nn.Sequential]:
    """Return four layers in so many stages, the same in every process."""
    torch.manual_seed(1)
    layers = [Block() for _ in range(4)]
    each = 4 // count
    parts = [nn.Sequential(*layers[each * k : each * (k + 1)]) for k in range(count)]
    parts[0] = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *parts[0])
    parts[-1] = nn.Sequential(*parts[-1], nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    return parts


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return sequences that a rule continues, and what follows each of their tokens."""
    draw = torch.Generator().manual_seed(step)
    start, stride = (torch.randint(n, (BATCH, 1), generator=draw) for n in (VOCABULARY, 4))
    text = (start + (stride + 1) * torch.arange(CONTEXT + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, default=2, help="stages of the pipeline")
    parser.add_argument("--dp", type=int, default=2, help="copies of it")
    parser.add_argument("--tp", type=int, default=2, help="devices among which matrices are cut")
    parser.add_argument("--schedule", default="one_f_one_b")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    worker: Any = connect()
    mesh = init_device_mesh("cpu", (given.pp, given.dp, given.tp), mesh_dim_names=("pp", "dp", "tp"))
    along, across = (worker.adopt(mesh[name].get_group()) for name in ("pp", "dp"))
    pipeline = named(given.schedule).pipeline(given.pp, given.microbatches)
    module = stages(given.pp)[along.rank]
    if given.tp > 1:
        shard_tensors(module, mesh["tp"], CUTS)
    device = PipelineDevice(
        pipeline,
        {along.rank: module},
        {along.rank: torch.optim.AdamW(module.parameters(), 3e-3)},
        loss,
        worker,
        along,
        replicas=across,
    )
    for step in range(given.steps):
        x, y = (part.chunk(given.dp)[across.rank] for part in batch(step))
        found = device.step(x, y)
        if found is not None:
            total = torch.tensor([found])
            across.all_reduce(total).wait()
            if across.rank == 0 and mesh["tp"].get_local_rank() == 0:
                print(f"step {step}: loss {total.item() / given.dp:.6f}", flush=True)


if __name__ == "__main__":
    main()

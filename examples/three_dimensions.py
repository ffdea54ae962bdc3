"""A small transformer on a mesh: stages of a pipeline, copies of it, and matrices that are cut.

    laconic run --workers 8 examples/three_dimensions.py --pp 2 --dp 2 --tp 2
    laconic run --workers 8 examples/three_dimensions.py --strategy "topk(0.1)+ef" --boundary aq_sgd
    python examples/three_dimensions.py --pp 1 --dp 1 --tp 1    # the same training in one process

Where nothing is compressed, the losses are the same, whatever the mesh. The last line says how many bytes all devices
have sent to the next and last stages (pp) and to copies (dp); what tensor parallelism sends is torch's own, and is not
counted.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

import laconic
from laconic.compression.per_hop import CodeOfHops
from laconic.parallel.pipeline.aq_sgd import AqSgd
from laconic.parallel.pipeline.boundary import BoundaryCode, Coded
from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.parallel.pipeline.schedule import named
from laconic.parallel.tensor.megatron import shard_tensors
from laconic.real.connect import connect
from laconic.strategy import Strategy
from laconic.worker import Kind

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


def batch(step: int) -> tuple[Tensor, Tensor, list[int]]:
    """Return sequences that a rule continues, what follows each of their tokens, and the sequences' numbers: there is
    one for each first token and stride, and an epoch has all of them in another order."""
    steps = 4 * VOCABULARY // BATCH
    order = torch.randperm(4 * VOCABULARY, generator=torch.Generator().manual_seed(step // steps))
    numbers = order.view(steps, BATCH)[step % steps]
    start, stride = numbers[:, None] // 4, numbers[:, None] % 4
    text = (start + (stride + 1) * torch.arange(CONTEXT + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:], numbers.tolist()


def boundary(word: str, stages: int, copy: int) -> dict[Any, BoundaryCode]:
    """Return how what travels between stages is encoded: alike on devices that cut the same copy's matrices, since
    they have the same activations; with other random numbers in each copy."""
    if word == "none":
        return {}
    if word == "aq_sgd":
        return dict(AqSgd().codes(stages, seed=copy))
    compressor = Strategy.parse(word).compressor  # type: ignore[attr-defined]
    ways = [(way, border) for way in ("forward", "backward") for border in range(stages - 1)]
    return {place: Coded(CodeOfHops(compressor)) for place in ways}


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
    parser.add_argument("--strategy", default="bsp", help="how copies exchange gradients, as a sentence")
    parser.add_argument("--boundary", default="none", help="what travels between stages: none, aq_sgd, or int8, say")
    given = parser.parse_args()
    worker: Any = connect()
    mesh = laconic.init_device_mesh("cpu", (given.pp, given.dp, given.tp), mesh_dim_names=("pp", "dp", "tp"))
    along, across = (worker.adopt(mesh[name].get_group()) for name in ("pp", "dp"))
    pipeline = named(given.schedule).pipeline(given.pp, given.microbatches)
    stage = along.rank
    module: nn.Module = stages(given.pp)[stage]
    if given.tp > 1:
        shard_tensors(module, mesh["tp"], CUTS, source=None)
    optimizer: Any = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.5)
    module, optimizer = laconic.distribute(module, optimizer, given.strategy, mesh=mesh["dp"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    codes = boundary(given.boundary, given.pp, across.rank)
    device = PipelineDevice(pipeline, {stage: module}, {stage: optimizer}, loss, worker, along, codes)
    before = worker.ledger.by_operation(Kind.PAYLOAD)
    for step in range(given.steps):
        x, y, numbers = batch(step)
        own = slice(BATCH // given.dp * across.rank, BATCH // given.dp * (across.rank + 1))
        found = device.step(x[own], y[own], numbers[own])
        scheduler.step()
        if found is not None:
            total = torch.tensor([found])
            across.all_reduce(total, control=1.0).wait()
            if across.rank == 0 and mesh["tp"].get_group().rank() == 0:
                print(f"step {step}: loss {total.item() / given.dp:.6f}", flush=True)
    laconic.finish(module, optimizer)
    after = worker.ledger.by_operation(Kind.PAYLOAD)
    sent = {operation: number - before.get(operation, 0.0) for operation, number in after.items()}
    between, among = sent.pop("send", 0.0), sum(sent.values())
    totals = worker.world.all_reduce(torch.tensor([between, among], dtype=torch.float64), control=1.0).wait().tolist()
    if worker.rank == 0:
        print("bytes sent: pp {:.0f}, dp {:.0f}".format(*totals), flush=True)


if __name__ == "__main__":
    main()

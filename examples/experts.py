"""A small transformer with experts and ring attention on a mesh: sequences are divided among devices, and cut.

    laconic run --workers 4 examples/experts.py --ep 2 --cp 2
    python examples/experts.py --ep 1 --cp 1    # the same training in one process
    laconic run --workers 4 examples/experts.py --forward "int8(256)" --backward "cast_bf16(stochastic)"

Along `ep` devices have different sequences and different experts, along `cp` different parts of the same sequences. The
losses are the same, whatever the mesh; with codes they are nearly the same, in fewer bytes.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

import laconic
from laconic.parallel.context.ring import RingAttention, ring_attention
from laconic.parallel.device_groups import groups_of
from laconic.parallel.experts.layer import MixtureOfExperts, balance_loss
from laconic.parallel.experts.shard import shard_experts
from laconic.real.connect import connect

WIDTH, HEADS, LENGTH, VOCABULARY, BATCH, EXPERTS = 32, 4, 32, 20, 16, 8


class Block(nn.Module):
    """A layer of a transformer, with experts in the place of its feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        experts = [
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        ]
        self.experts = MixtureOfExperts(nn.Linear(WIDTH, EXPERTS, bias=False), experts, top=2)

    def forward(self, x: Tensor, attend: RingAttention) -> Tensor:
        query, key, value = self.mixed(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(query, key, value).transpose(1, 2).flatten(2))
        return x + self.experts(self.second(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, text: Tensor, attend: RingAttention) -> Tensor:
        x = self.tokens(text) + self.places(attend.positions)
        for block in self.blocks:
            x = block(x, attend)
        return self.head(self.last(x))  # type: ignore[no-any-return]


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return sequences that a rule continues, and what follows each of their tokens."""
    draw = torch.Generator().manual_seed(step)
    start, stride = (torch.randint(n, (BATCH, 1), generator=draw) for n in (VOCABULARY, 4))
    text = (start + (stride + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
    return text[:, :-1], text[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ep", type=int, default=2, help="devices among which sequences and experts are divided")
    parser.add_argument("--cp", type=int, default=2, help="devices among which each sequence is cut")
    parser.add_argument("--forward", default="none", help="how tokens are encoded on their way to experts and back")
    parser.add_argument("--backward", default="none", help="how their gradients are")
    parser.add_argument("--strategy", default="[bsp]@ep > [bsp]@cp", help="how gradients are averaged")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    mesh = laconic.init_device_mesh("cpu", (given.ep, given.cp), mesh_dim_names=("ep", "cp"))
    torch.manual_seed(1)
    model = shard_experts(Transformer(), mesh, forward=given.forward, backward=given.backward)
    attend = ring_attention(mesh["cp"], LENGTH, causal=True, zigzag=True)
    _, optimizer = laconic.distribute(model, torch.optim.AdamW(model.parameters(), 3e-3), given.strategy, mesh=mesh)
    for step in range(given.steps):
        text, follows = (attend.cut(part.chunk(given.ep)[mesh.get_local_rank("ep")]) for part in batch(step))
        loss = functional.cross_entropy(model(text, attend).flatten(0, 1), follows.flatten())
        (loss + 0.01 * balance_loss(model)).backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        for group in groups_of(mesh).values():
            total = group.all_reduce(total).wait()
        if laconic.rank() == 0:
            print(f"step {step}: loss {total.item() / mesh.size():.6f}", flush=True)
    if laconic.rank() == 0:
        print(f"sent by the first device: {connect().ledger.sent_bytes() / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    main()

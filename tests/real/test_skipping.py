"""Gradients that a rule does without: no worker waits for what nobody computes, on either engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import laconic
from tests.real.pool import Pool, PoolRank
from tests.sync import rounds

STRATEGY = "jointspar(keep=0.5, floor=0.05, rate=0.05)"


class Branches(nn.Module):
    """Every worker uses a layer of its own, and none of the other's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ways = nn.ModuleList(nn.Linear(3, 1) for _ in range(2))

    def forward(self, x: Tensor, way: int) -> Tensor:
        return self.ways[way](x)


def branch_by_branch(process_group: Any = None) -> tuple[Tensor, list[set[int]]]:
    """Steps in which all that a worker uses is skipped, or nothing, or everything."""
    model = Branches()
    optimizer: Any = rounds.sgd(model.parameters())
    model, optimizer = laconic.distribute(model, optimizer, STRATEGY, process_group=process_group)
    kinds: list[set[int]] = []
    for step in range(16):
        kinds.append({i // 2 for i in optimizer.session.gradients.skipped.skipped})
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2 * step + laconic.rank()))
        model(x, laconic.rank()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    laconic.undistribute(model, optimizer)
    assert all(p.requires_grad for p in model.parameters())
    return rounds.flat(model.parameters()), kinds


def on_processes(member: PoolRank) -> tuple[Tensor, list[set[int]]]:
    return branch_by_branch(member.process_group)


def test_parts_that_only_some_workers_use_do_not_hang(pool: Pool) -> None:
    virtual = laconic.simulate(branch_by_branch, 2).results
    real = pool.run(on_processes, workers=2)
    assert {frozenset(kind) for kind in virtual[0][1]} == {frozenset(s) for s in ([], [0], [1], [0, 1])}
    for (point, kinds), (other, their_kinds) in zip(virtual, real, strict=True):
        assert kinds == their_kinds
        assert torch.equal(point, other) and torch.equal(point, virtual[0][0])

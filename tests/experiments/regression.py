"""A script for comparisons that tune: noisy linear regression on samples that never repeat."""

from __future__ import annotations

import argparse

import torch
from torch import nn

import laconic

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

STEPS, BATCH, FEATURES = 88, 4, 20
truth = torch.randn(FEATURES, 1, generator=torch.Generator().manual_seed(options.seed))
draw = torch.Generator().manual_seed(1000 * options.seed + laconic.rank() + 1)
model: nn.Module = nn.Linear(FEATURES, 1, bias=False)
nn.init.zeros_(model.weight)  # type: ignore[arg-type]
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
model, optimizer = laconic.distribute(model, optimizer)
laconic.log(loss=truth.square().sum())
for step in range(STEPS):
    x = torch.randn(BATCH, FEATURES, generator=draw)
    y = x @ truth + torch.randn(BATCH, 1, generator=draw)
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 8 == 0:
        laconic.log(loss=(model.weight.detach().T - truth).square().sum())  # above the noise that nobody can remove

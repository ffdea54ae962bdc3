"""A script for comparisons: it records when each step began, and can die half-way under one strategy."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import laconic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--dies", help="the word of the strategy that does not survive step 5")
options = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 500), nn.Linear(500, 10))
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = laconic.distribute(model, optimizer)
for step in range(options.steps):
    begin = time.perf_counter()
    loss = model(torch.ones(8, 100)).square().mean()
    loss.backward()
    laconic.log(begin=begin, ready=time.perf_counter())  # before the step: it belongs to this block
    optimizer.step()
    optimizer.zero_grad()
    laconic.log(loss=loss)
    if options.dies and step == 5 and laconic.rank() == 1 and options.dies in repr(optimizer):
        raise SystemExit("this strategy does not suit me")

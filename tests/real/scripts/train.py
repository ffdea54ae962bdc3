"""A training script as a user would write it, but small: it writes checkpoints, prints, and keeps its result.

Its result is a file with the digest of the parameters, so that a disturbed run can be compared with a quiet one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from torch import nn

import laconic


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10, help="checkpoint after so many steps")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 5))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = laconic.distribute(model, optimizer)
    print(f"pid {os.getpid()}", flush=True)
    torch.manual_seed(laconic.rank())
    begin = 0
    if options.checkpoint is not None:
        begin = laconic.resume(options.checkpoint, model, optimizer).get("step", 0)
    print(f"begins at step {begin}", flush=True)
    for step in range(begin, options.steps):
        loss = model(torch.randn(16, 20)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        laconic.log(loss=loss)
        print(f"step {step}", flush=True)
        if options.checkpoint is not None and (step + 1) % options.every == 0:
            laconic.checkpoint(options.checkpoint, model, optimizer, step=step + 1)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    if options.result is not None and laconic.rank() == 0:
        options.result.write_text(digest)


main()

"""A small training that a strategy governs: the same on virtual workers, and as a script on real processes.

`python -m laconic run -m laconic.check.training` prints a line with what rank 0 ends with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.api.distribute import distribute
from laconic.errors import LaconicError
from laconic.real.connect import connect
from laconic.runtime.checkpoint import checkpoint
from laconic.runtime.checkpoint import resume as resume_checkpoint
from laconic.runtime.current_worker import rank
from laconic.runtime.finish import finish
from laconic.runtime.metrics import log
from laconic.strategy import Strategy
from laconic.virtual.compute import Compute
from laconic.virtual.simulate import simulate
from laconic.worker import Kind

STEPS, HALF = 7, 4
MARK = "laconic-check: "
WIDTHS = (6, 9, 5)  # odd numbers of elements, so that something must be padded


@dataclass(frozen=True)
class Trained:
    """What one worker saw: its parameters after each step and at the end, and the payload sent in each step."""

    parameters: tuple[Tensor, ...]
    finished: Tensor
    sent_bytes: tuple[float, ...]

    @property
    def digest(self) -> str:
        """The bits of the parameters in the end, in short."""
        return sha256(self.finished.numpy().tobytes()).hexdigest()


def train(strategy: str | None = None, save: Path | None = None, resume: Path | None = None) -> Trained:
    """Train for some steps on this worker, and finish; or save a checkpoint half-way and stop; or resume from it."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.Tanh(), nn.Linear(*WIDTHS[1:]))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = distribute(model, optimizer, strategy)
    draw = torch.Generator().manual_seed(1 + rank())
    ledger, parameters, sent = connect().ledger, [], [0.0]
    begun = ledger.sent_bytes(Kind.PAYLOAD)
    if resume is not None:
        resume_checkpoint(resume / "half", model, optimizer)
    for step in range(STEPS):
        x, y = torch.randn(4, WIDTHS[0], generator=draw), torch.randint(WIDTHS[-1], (4,), generator=draw)
        if resume is not None and step < HALF:
            continue
        if save is not None and step == HALF:
            checkpoint(save / "half", model, optimizer)
            break
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log(loss=loss.item())
        parameters.append(_flat(model))
        sent.append(ledger.sent_bytes(Kind.PAYLOAD) - begun)
    finish(model, optimizer)
    return Trained(tuple(parameters), _flat(model), tuple(b - a for a, b in pairwise(sent)))


def trained_virtually(
    strategy: Strategy,
    workers: int,
    slowness: tuple[float, ...] = (1.0,),
    save: Path | None = None,
    resume: Path | None = None,
) -> list[Trained]:
    """Return what each of so many virtual workers saw, of the given relative speeds."""
    compute = Compute(forward_seconds=0.01, backward_seconds=0.02, slowness=slowness)
    found: list[Trained] = simulate(lambda: train(str(strategy), save, resume), workers, compute=compute).results
    return found


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()


def read_digest(output: str) -> str:
    """Return the digest that rank 0 of a real run printed."""
    lines = [line.partition(MARK)[2] for line in output.splitlines() if MARK in line]
    if not lines:
        raise LaconicError(f"the processes ended without a result: {' '.join(output.split())[-400:]}")
    return str(json.loads(lines[-1])["digest"])


if __name__ == "__main__":
    seen = train()
    if rank() == 0:
        print(MARK + json.dumps({"digest": seen.digest}))

"""The reference language model: the example's transformer on Shakespeare, trained by four virtual workers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import laconic
from laconic.real.connect import connect
from laconic.worker import Kind
from tests.data import FOLDER
from tests.test_examples import loaded

WORKERS, CONTEXT = 4, 32


@dataclass(frozen=True)
class Trained:
    """Nats per character on held-out text, and worker 0's payload bytes, step by step."""

    loss: float
    sent_bytes: list[float]
    parameters: int


def trained(
    strategy: str,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    steps: int,
    batch: int = 8,
    seed: int = 0,
    width: int = 32,
    warmup: int = 50,
) -> Trained:
    """Rates rise over `warmup` steps to the optimizer's own and fall to a tenth by a cosine."""
    if not (FOLDER / "text" / "tinyshakespeare.txt").is_file():
        pytest.skip(f"there is no text in {FOLDER}: set LACONIC_DATA to the folder with the project's data")
    chars = loaded("chars")
    shape = chars.Shape(depth=1, width=width, context=CONTEXT)
    training, held_out, characters = chars.load_text(FOLDER / "text" / "tinyshakespeare.txt")

    def body() -> Trained | None:
        model = chars.build_model(seed, characters, shape)
        n = sum(p.numel() for p in model.parameters())
        optimizer: Any = make(model)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        rates, ledger, sent = [group["lr"] for group in optimizer.param_groups], connect().ledger, []
        for step in range(steps):
            share = min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            before = ledger.sent_bytes(Kind.PAYLOAD)
            chars.loss_of(model, *chars.draw_batch(training, CONTEXT, batch, (seed, step, laconic.rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            sent.append(ledger.sent_bytes(Kind.PAYLOAD) - before)
        laconic.finish(model, optimizer)
        if laconic.rank():
            return None
        return Trained(chars.validate(model, held_out, CONTEXT, 100_000), sent, n)

    first: Trained = laconic.simulate(body, WORKERS).results[0]
    return first

"""Small models trained by pipelines and by one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laconic.language.grammar import parse_schedule
from laconic.parallel.pipeline.execute import PipelineDevice
from laconic.parallel.pipeline.pipeline import Pipeline
from laconic.real.connect import connect

WIDTH = 6
BATCH = 24


def layers(stages: int, dropout: float = 0.0) -> list[nn.Module]:
    """Return the stages of a model, each of which trains, alike in every process."""
    torch.manual_seed(3)
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout), nn.Tanh(), nn.LayerNorm(WIDTH))
        for _ in range(stages)
    ]


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(5)
    return [
        (torch.randn(BATCH, WIDTH, generator=draw), torch.randn(BATCH, WIDTH, generator=draw)) for _ in range(steps)
    ]


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), 0.2, momentum=0.5)


def alone(stages: int, steps: int) -> tuple[list[list[Tensor]], list[float]]:
    """Train the model in one process and return the parameters of each stage, and the losses."""
    model = nn.Sequential(*layers(stages))
    optimizer, losses = optimizer_of(model), []
    for x, y in batches(steps):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [[p.detach().clone() for p in stage.parameters()] for stage in model], losses


def on_a_device(
    word: str,
    microbatches: int,
    steps: int = 3,
    dropout: float = 0.0,
    process_group: Any = None,
    **options: Any,
) -> tuple[dict[int, list[Tensor]], list[float | None], float]:
    """Train this worker's stages; return their parameters, the losses that end here, and the bytes it has sent."""
    worker: Any = connect()
    group = worker.world if process_group is None else worker.adopt(process_group)
    before = worker.ledger.sent_bytes()
    made: Pipeline = parse_schedule(word).pipeline(group.size, microbatches)
    every = layers(made.stages, dropout)
    torch.manual_seed(group.rank)
    modules = {stage: every[stage] for stage in made.stages_of(group.rank)}
    optimizers = {stage: optimizer_of(module) for stage, module in modules.items()}
    device = PipelineDevice(made, modules, optimizers, nn.functional.mse_loss, worker, group, **options)
    losses = [device.step(x, y) for x, y in batches(steps)]
    parameters = {s: [p.detach().clone() for p in module.parameters()] for s, module in modules.items()}
    return parameters, losses, worker.ledger.sent_bytes() - before

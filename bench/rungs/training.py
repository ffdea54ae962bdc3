"""One run: N virtual workers train a model by a sentence, and the row tells loss, bytes and time."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from bench.rungs.guards import refuse
from bench.rungs.noise import NoiseScale
from bench.rungs.run import Run, share_of_rate, strategy_at
from bench.rungs.shipped import Aside, can_be_looked_at
from torch import Tensor, nn

import laconic
from laconic.real.connect import connect
from laconic.runtime.tiers import is_collective

DECAY, WITH_MOMENTUM, LONGEST = 0.1, 5e-4, 1.0
"""The weight decay of matrices, the same where it is added to gradients, and the norm to which these are clipped."""
BASELINE = str(strategy_at("bsp", 1))
"""The method whose gradients' noise is measured."""
POINTS = 10
"""The validations of a run."""


class DivergedError(Exception):
    """The loss is not a number any more."""


def optimizer_of(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return an optimizer whose weight decay is that of matrices alone."""
    if name == "muon":
        return laconic.optim.Muon(laconic.optim.matrices_apart(model), lr, weight_decay=DECAY, betas=(0.9, 0.95))
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = parameters[0].is_cuda
    if name == "adamw":
        return torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), fused=fused)
    if name == "adam":  # for rules with frozen variances, which know no decoupled decay
        return torch.optim.Adam(parameters, lr, betas=(0.9, 0.95), fused=fused)
    if name == "lamb":
        return laconic.optim.LAMB(groups, lr, betas=(0.9, 0.95))
    for group in groups:
        group["weight_decay"] = WITH_MOMENTUM * bool(group["weight_decay"])
    momentum = 0.9 if name == "sgd" else 0.0
    return torch.optim.SGD(groups, lr, momentum=momentum, nesterov=momentum > 0, fused=fused)


def train(run: Run, task: Any, together: bool = True, compile: bool = False) -> dict[str, Any]:
    """Train a run to its end, and return its row. What is evaluated is what would be shipped, on the way too; where a
    rule does not let it be seen there, the end alone is evaluated."""
    refuse(run)
    strategy = strategy_at(run.method, run.steps)
    built = [p.shape for p in task.build(run.seed).parameters()]
    curve: list[tuple[int, float]] = []
    metrics: dict[str, float] = {}
    every = max(1, run.steps // POINTS)
    plain = run.sentence == BASELINE and run.workers > 1
    watched = NoiseScale(task, run.seed, run.workers) if plain else None
    on_the_way = can_be_looked_at(strategy)
    loss: Callable[..., Tensor] = task.loss
    if together and is_collective(strategy):
        loss = laconic.batched(task.loss, compile=compile)

    def validate(model: nn.Module, step: int) -> None:
        found = task.evaluate(model)
        metrics.update(found)
        curve.append((step, round(found["loss"], 5)))
        if not math.isfinite(found["loss"]):
            raise DivergedError
        if watched is not None and step < run.steps:
            watched.at(model, step)

    def work() -> float:
        model: nn.Module = task.build(run.seed).to(task.device)
        optimizer = optimizer_of(run.optimizer, model, run.lr)
        model, optimizer = laconic.distribute(model, optimizer, strategy)
        aside = Aside()
        for step in range(run.steps):
            for group in optimizer.param_groups:
                group["lr"] = run.lr * share_of_rate(step, run.steps)
            loss(model, *task.batch(run.seed, step, laconic.rank())).backward()
            laconic.clip_grad_norm_(optimizer, LONGEST)
            optimizer.step()
            optimizer.zero_grad()
            if on_the_way and (step + 1) % every == 0 and step + 1 < run.steps:
                with aside.shipped(model, optimizer):
                    if laconic.rank() == 0:
                        validate(model, step + 1)
        laconic.finish(model, optimizer)
        if laconic.rank() == 0:
            validate(model, run.steps)
        return connect().ledger.sent_bytes() - aside.sent_bytes

    begin = time.perf_counter()
    sent = {}
    try:
        done = laconic.simulate(work, run.workers)
        sent = {"bytes": round(sum(done.results) / run.workers)}
    except DivergedError:
        pass  # and the row says so
    finally:
        gc.collect()  # a simulation is a circle of references, and its graphs hold a device's memory
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    loss_at_end = metrics.pop("loss")
    diverged = not math.isfinite(loss_at_end)
    return {
        **asdict(run),
        "sentence": run.sentence,
        "kind": task.kind,
        "data": task.data,
        "parameters": sum(shape.numel() for shape in built),
        "tensors": len(built),
        "samples_per_step": (samples := task.samples * run.workers),
        "epochs": None if task.size is None else round(samples * run.steps / task.size, 4),
        "loss": None if diverged else round(loss_at_end, 5),
        "metrics": {name: round(value, 5) for name, value in metrics.items()},
        "curve_of": "shipped",
        "curve": [point for point in curve if math.isfinite(point[1])],
        **(watched.fields if watched is not None else {}),
        **sent,
        "seconds": round(time.perf_counter() - begin, 2),
        **({"diverged": True} if diverged else {}),
    }

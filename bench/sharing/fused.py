"""Fused trials on one GPU, against the same trials one after another and in processes side by side."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from bench.sharing.models import synchronize, trial
from bench.sharing.rows import Rows, spread
from bench.sharing.workers import pick, rates, workers
from torch import Tensor
from torch.nn import functional

from laconic.cluster.hpo.fused import Fused, most_fused

FUSED = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = (2, 4, 8)


def fused(rows: Rows, device: str, small: bool, seconds: float, repeats: int) -> None:
    """Measure both kinds of trials."""
    alone: dict[str, float] = {}
    for kind in ("mlp", "conv"):
        if not rows.time_for("fused", kind, seconds * repeats * 3 + 5):
            return
        _equal(rows, kind, device, small)
        one = spread([_one_after_another(kind, device, small, seconds / 2) for _ in range(repeats)])
        alone[kind] = one["median"]
        rows.add("fused", case=f"{kind}: one after another", trial_steps_a_second=one)
        found, used = dict[int, float](), dict[int, float]()
        for count in FUSED[:3] if small else FUSED:
            speed, used[count] = _together(kind, count, device, small, seconds / 2, repeats)
            found[count] = speed["median"]
            over = speed["median"] / one["median"]
            rows.add("fused", case=f"{kind}: {count} fused", trial_steps_a_second=speed, over_one_after_another=over)
        memory = float(torch.cuda.mem_get_info()[1]) if device == "cuda" else 1e9
        chosen = most_fused(used[1], max(used[2], used[1]), memory, lambda count, found=found: found.get(count, 0.0))
        best = max(found, key=lambda count, found=found: found[count])
        rows.add("fused", case=f"{kind}: rule", chosen=chosen, best=best, of_the_best=found[chosen] / found[best])
    if rows.time_for("fused", "processes", 30 if not small else 0):
        _side_by_side(rows, device, small, seconds, repeats, alone)


def loss(model: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a trial's model on a batch."""
    return functional.cross_entropy(model(x), y)


def _trials(kind: str, count: int, device: str, small: bool) -> tuple[list[Any], list[float], tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    with torch.device(device):
        model, batch = trial(kind, device, small)
    return [model] * count, [1e-3 * (1 + i / 64) for i in range(count)], batch


def _together(
    kind: str, count: int, device: str, small: bool, seconds: float, repeats: int
) -> tuple[dict[str, float], float]:
    """Return the steps a second of so many fused trials, times their number, and their bytes."""
    models, learning, batch = _trials(kind, count, device, small)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trials = Fused(models, learning, [0.9] * count)
    for _ in range(3):
        trials.step(loss, *batch)
    synchronize(device)
    found = []
    for _ in range(repeats):
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            for _ in range(5):
                trials.step(loss, *batch)
            steps += 5
            synchronize(device)
        found.append(count * steps / (time.perf_counter() - begin))
    used = float(torch.cuda.max_memory_allocated()) if device == "cuda" else 1e6 * count
    return spread(found), used


def _one_after_another(kind: str, device: str, small: bool, seconds: float) -> float:
    (model,), (rate,), batch = _trials(kind, 1, device, small)
    optimizer = torch.optim.SGD(model.parameters(), rate, 0.9)

    def step() -> None:
        loss(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    synchronize(device)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(5):
            step()
        steps += 5
        synchronize(device)
    return steps / (time.perf_counter() - begin)


def _equal(rows: Rows, kind: str, device: str, small: bool, count: int = 8, steps: int = 20) -> None:
    """Compare the losses of fused trials with those of trials alone, without the products of reduced precision."""
    kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    models, learning, batch = _trials(kind, count, device, small)
    trials = Fused(models, learning, [0.9] * count)
    together = torch.stack([trials.step(loss, *batch) for _ in range(steps)]).double().cpu()
    apart = torch.empty_like(together)
    for i, (model, rate) in enumerate(zip(models, learning, strict=True)):
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), rate, 0.9)
        for step in range(steps):
            value = loss(own, *batch)
            apart[step, i] = value.detach().double().cpu()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept
    off = ((together - apart).abs() / apart.abs()).max().item()
    spread_of_trials = (apart[-1].max() - apart[-1].min()).item()
    fell = (apart[0] - apart[-1]).mean().item()
    rows.add(
        "fused",
        case=f"{kind}: losses",
        largest_relative_difference=off,
        loss_fell_by=fell,
        trials_differ=spread_of_trials,
    )


def _side_by_side(rows: Rows, device: str, small: bool, seconds: float, repeats: int, alone: dict[str, float]) -> None:
    counts = PROCESSES[:1] if small else PROCESSES
    wanted = [(f"trial-{kind}", 1.0) for kind in alone for _ in range(max(counts))]
    with workers(wanted, device, small) as pool:
        for kind, count in itertools.product(alone, counts):
            together = pick(pool, [(f"trial-{kind}", 1.0)] * count)
            found = spread([sum(row) for row in rates(together, seconds, repeats)])
            over = found["median"] / alone[kind]
            rows.add(
                "fused", case=f"{kind}: {count} processes", trial_steps_a_second=found, over_one_after_another=over
            )

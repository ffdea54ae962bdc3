"""One run of the federated table: virtual clients train by a sentence, and the row tells accuracy, bytes and time."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from bench.clients.choosing import Run
from bench.clients.images import Images
from bench.clients.methods import SILOS

from laconic.federated.outcome import Step
from laconic.federated.partition import Shards, by_label, dirichlet
from laconic.federated.population import Population
from laconic.federated.simulate import simulate

POINTS = {"report": 30, "final": 30, "tuning": 12}
"""How often a run is judged; the last sixth of these is its accuracy."""


class DivergedError(Exception):
    """The loss is not a number any more."""


def shards_of(run: Run, labels: np.ndarray) -> Shards:
    """Return whose images are whose: a draw of the run's seed."""
    if run.population == "two labels":
        return by_label(labels, run.clients, 2, run.seed)
    concentration = 0.5 if run.population == SILOS else float(run.population.split()[1])
    return dirichlet(labels, run.clients, concentration, run.seed)


def population_of(run: Run, labels: np.ndarray) -> Population:
    """Return clients of unequal speed: the middle one trains on 100 images a second, receives 20 Mbit/s and sends 5; in
    each of these one client of three is more than 2.7 times as fast or as slow."""
    draw = np.random.default_rng([run.seed, 0xC1FA])
    spread = (np.exp(draw.normal(0.0, 1.0, run.clients)) for _ in range(3))
    seconds, up, down = (middle * each for middle, each in zip((0.01, 5e6, 2e7), spread, strict=True))
    return Population(shards_of(run, labels), sample_seconds=seconds, up_bits=up, down_bits=down)


def train(run: Run, task: Images, recorded: bool) -> dict[str, Any]:
    """Train a run to its end, and return its row."""
    torch.manual_seed(run.seed)
    begin, curve = time.perf_counter(), list[tuple[int, float, float, int, int]]()
    number, staleness = 0, list[int]()

    def progress(step: Step) -> None:
        nonlocal number
        number += 1
        staleness.extend(step.staleness)
        if step.scores:
            if not math.isfinite(step.scores["loss"]):
                raise DivergedError
            accuracy = round(step.scores["accuracy"], 5)
            curve.append((number, accuracy, round(step.seconds, 2), step.up_bytes, step.down_bytes))

    diverged = False
    try:
        simulate(
            task.for_tuning(run.purpose != "report"),
            population_of(run, task.labels[: run.images].cpu().numpy()),
            run.sentence,
            run.rounds,
            rate=run.rate,
            seed=run.seed,
            evaluate_every=max(1, run.rounds // POINTS[run.purpose]),
            recorded=recorded,
            progress=progress,
        )
    except DivergedError:
        diverged = True
    last = [accuracy for _, accuracy, *_ in curve[-max(1, len(curve) // 6) :]]
    return {
        **asdict(run),
        "accuracy": 0.0 if diverged else round(sum(last) / len(last), 5),
        "curve": curve,
        "staleness": round(sum(staleness) / max(1, len(staleness)), 2),
        "parameters": sum(p.numel() for p in task.build(0).parameters()),
        "seconds": round(time.perf_counter() - begin, 2),
        **({"diverged": True} if diverged else {}),
    }

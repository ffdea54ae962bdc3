"""The tasks of the ladder by name."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from bench.rungs.choosing import WORKERS, Rung
from bench.tasks import Task
from bench.tasks.bpe import Bpe
from bench.tasks.bytes import Bytes
from bench.tasks.cifar import Cifar
from bench.tasks.recommender import Recommender
from bench.tasks.transformer import Shape

from laconic.errors import LaconicError
from laconic.planner.runs import MOST_PASSES

KEPT = 0.95
"""The share of a frozen text that is trained on, at least: the rest is held out."""
OF_TEXT = {"bytes": Bytes, "bpe": Bpe}


def data_of(rung: Rung, data: Path | None) -> str:
    """Return the hash by which a rung's data are told from those of other machines; empty where all have the same."""
    if rung.task not in OF_TEXT:
        return ""
    task = OF_TEXT[rung.task]
    return task.digest(task.checked(data))


def refuse_repetition(rung: Rung, data: Path | None) -> None:
    """Raise an error where the runs of a rung would pass too often over the text that there is."""
    if rung.task not in OF_TEXT:
        return
    task, samples = OF_TEXT[rung.task], rung.steps * rung.rows * WORKERS * rung.context
    path = task.checked(data)
    length = task.length(path)
    if (passes := samples / length.tokens) > MOST_PASSES:
        least = math.ceil(length.bytes * passes / MOST_PASSES / KEPT / 1e6)
        raise LaconicError(
            f"a run of {rung.name} takes {samples:,} tokens, which is {passes:.3g} passes over the {length.tokens:,} "
            f"to train on in {path}, where the most are {MOST_PASSES}: freeze a longer text, by `--megabytes "
            f"{least}` or more of {task.made_by}"
        )


def task_of(rung: Rung, data: Path | None, device: torch.device, workers: int) -> Task:
    """Return a rung's task for so many workers, who share the batch of eight."""
    batch, given = rung.rows * WORKERS // workers, {} if data is None else {"data": data}
    if rung.task in OF_TEXT:
        shape = Shape(rung.layers, rung.width, rung.context)
        return OF_TEXT[rung.task](device, batch, workers, rung.skewed, shape=shape, **given)
    if rung.task == "cifar":
        return Cifar(device, batch, workers, rung.skewed, blocks=rung.layers or 3, **given)
    if rung.task == "recommender":
        return Recommender(device, batch, workers, rung.skewed)
    raise SystemExit(f"there is no task {rung.task!r}: a rung has bytes, bpe, cifar or recommender")

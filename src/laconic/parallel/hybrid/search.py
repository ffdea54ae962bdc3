"""The search for a layout: every way to divide GPUs that a model allows, priced at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from laconic.errors import LaconicError
from laconic.parallel.hybrid.cluster import Cluster, Constants
from laconic.parallel.hybrid.iteration import priced
from laconic.parallel.hybrid.memory import RESERVED_SHARE, largest_bytes
from laconic.parallel.hybrid.runs import RECOMPUTE, Array, Layout, Runs
from laconic.parallel.hybrid.transformer import Transformer

LARGEST_MICROBATCH = 64
_COLUMNS = ("pipeline", "tensor", "data", "microbatch", "chunks", "recompute", "sharded", "strategy")


@dataclass(frozen=True)
class Across:
    """How data-parallel ranks sum gradients: the bytes of each parameter's payload, in the mean over steps, and whether
    payloads are gathered from all ranks instead of being summed on their way."""

    payload_bytes: float = 2.0
    gathered: bool = False


EXACT: Mapping[str, Across] = {"bsp": Across()}
"""Gradients of 16 bits in an all-reduce of every step."""


@dataclass(frozen=True)
class Choice:
    """A priced layout: seconds of an iteration and their parts, bytes of the stage that needs most, and whether it
    fits."""

    layout: Layout
    strategy: str
    seconds: float
    bubble_seconds: float
    gradient_seconds: float
    memory_bytes: float
    fits: bool


@dataclass(frozen=True)
class Found:
    """What a search found: the best layouts that fit, fastest first, how many were priced, and how many fit."""

    choices: tuple[Choice, ...]
    priced: int
    fitting: int
    least_bytes: float  # of all layouts: what the model needs at least


def search(
    model: Transformer,
    gpus: int,
    batch: int,
    cluster: Cluster,
    constants: Constants,
    *,
    strategies: Mapping[str, Across] = EXACT,
    memory_bytes: float | None = None,
    top: int = 10,
) -> Found:
    """Price every layout of a model on so many GPUs, and return the fastest that fit.

    - `batch`: samples of an iteration, over all GPUs.
    - `strategies`: ways to sum gradients across data-parallel ranks, by name.
    - `memory_bytes`: of a GPU; the cluster's, if not given.
    - `top`: how many to return.
    """
    grid = layouts(model, gpus, batch, len(strategies))
    if not len(grid):
        raise LaconicError(
            f"no layout of {gpus} GPUs divides {model.layers} layers, {model.heads} heads and a batch of {batch}: "
            "choose a number of GPUs or a batch with more divisors"
        )
    names, ways = list(strategies), list(strategies.values())
    columns = dict(zip(_COLUMNS, grid.T, strict=True))
    which = columns.pop("strategy").astype(int)
    payload, gathered = (
        np.array([getattr(way, name) for way in ways])[which] for name in ("payload_bytes", "gathered")
    )
    # a gather receives d - 1 payloads where an all-reduce moves 2 (d - 1)/d of one
    sent = payload * np.where(gathered, columns["data"] / 2, 1.0)
    runs = Runs.of_layouts(model, batch, gradient_bytes=sent, **columns)
    times, memory = priced(runs, cluster, constants), largest_bytes(runs)
    limit = (1 - RESERVED_SHARE) * (memory_bytes or cluster.memory_bytes)
    fits = memory <= limit
    total = times.total
    order = np.argsort(np.where(fits, total, np.inf), kind="stable")[: min(top, int(fits.sum()))]

    def choice(k: int) -> Choice:
        pipeline, tensor, data, microbatch, chunks, recompute, sharded, strategy = (int(value) for value in grid[k])
        layout = Layout(
            pipeline,
            tensor,
            data,
            microbatch,
            chunks,
            recompute,
            bool(sharded),
            gradient_bytes=float(sent[k]),
        )
        seconds, bubble, gradients, nbytes = (float(v[k]) for v in (total, times.bubble, times.gradients, memory))
        return Choice(layout, names[strategy], seconds, bubble, gradients, nbytes, bool(fits[k]))

    return Found(tuple(choice(int(k)) for k in order), len(grid), int(fits.sum()), float(memory.min()))


def layouts(model: Transformer, gpus: int, batch: int, strategies: int = 1) -> Array:
    """Return a row for each layout: pipeline, tensor, data, microbatch, chunks, recompute, sharded, strategy.

    Stages divide the layers and tensor-parallel ranks the heads; an interleaved pipeline's microbatches divide among
    its stages; one pipeline alone has nothing to shard.
    """
    found: list[tuple[int, ...]] = []
    for pipeline in divisors(model.layers):
        for tensor in divisors(model.heads):
            if gpus % (pipeline * tensor):
                continue
            data = gpus // (pipeline * tensor)
            if batch % data:
                continue
            every = range(len(RECOMPUTE)), range(2 if data > 1 else 1), range(strategies if data > 1 else 1)
            for microbatch in divisors(batch // data):
                if microbatch > LARGEST_MICROBATCH:
                    break
                count = batch // data // microbatch
                chunks = divisors(model.layers // pipeline) if pipeline > 1 and count % pipeline == 0 else [1]
                found.extend((pipeline, tensor, data, microbatch, *rest) for rest in product(chunks, *every))
    return np.array(found, float).reshape(-1, len(_COLUMNS))


def divisors(number: int) -> Sequence[int]:
    """Return the divisors of a number, smallest first."""
    return [k for k in range(1, number + 1) if number % k == 0]

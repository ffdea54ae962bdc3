"""HetPipe's planner: unequal GPUs grouped into virtual workers, each a pipeline that its GPUs' memory bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from laconic.errors import LaconicError
from laconic.parallel.planners.chain import Matrix, MinMax, Span, sums
from laconic.values.layer_graph import LayerGraph


@dataclass(frozen=True)
class Gpu:
    """A GPU that takes `slowness` times as long as the one that a model was profiled on."""

    kind: str
    slowness: float
    memory_bytes: float


@dataclass(frozen=True)
class VirtualWorker:
    """GPUs in the order of their stages, the layers of each, and the time of the slowest with so many in flight."""

    gpus: tuple[Gpu, ...]
    stages: tuple[Span, ...]
    in_flight: int
    seconds: float


def virtual_worker(
    model: LayerGraph, gpus: Sequence[Gpu], bits_per_second: float, most_in_flight: int | None = None
) -> VirtualWorker:
    """Return the pipeline of these GPUs, in the best order, with as many mini-batches in flight as memory allows.

    - `most_in_flight`: the most that are tried; default: 2 k - 1 for k GPUs, which fill a pipeline of 2 k passes.
    """
    found = None
    for in_flight in range(1, (most_in_flight or 2 * len(gpus) - 1) + 1):
        more = partition(model, gpus, bits_per_second, in_flight)
        if more is None:
            break
        found = more
    if found is None:
        raise LaconicError(
            f"no cut of the {len(model.layers)} layers fits into {len(gpus)} GPUs, even with one mini-batch in flight: "
            "group more GPUs, or make mini-batches smaller"
        )
    return found


def partition(model: LayerGraph, gpus: Sequence[Gpu], bits_per_second: float, in_flight: int) -> VirtualWorker | None:
    """Return the cut, over all orders of the GPUs, whose slowest stage is fastest; None where no cut fits.

    A stage takes its layers' time and that of receiving activations from the stage before and gradients from the one
    behind. It keeps activations and weights of all mini-batches in flight, the last stage, whose forward and backward
    pass are one task, of one; and one gradient of its weights.
    """
    if len(gpus) > len(model.layers):
        return None
    times = sums([layer.seconds for layer in model.layers])
    weights = sums([layer.parameter_bytes for layer in model.layers])
    activations = sums([layer.output_bytes for layer in model.layers])
    received = np.asarray(model.cut_bytes) / (bits_per_second / 8)
    best: VirtualWorker | None = None
    for order in sorted(set(permutations(gpus)), key=lambda order: [gpu.kind for gpu in order]):

        def seconds(stage: int, _: int, order: tuple[Gpu, ...] = order) -> Matrix:
            held = in_flight if stage + 1 < len(order) else 1
            fits = held * (activations + weights) + weights <= order[stage].memory_bytes
            whole: Matrix = np.where(
                fits, times * order[stage].slowness + received[:, None] + received[None, :], np.inf
            )
            return whole

        table = MinMax(len(model.layers), len(order), seconds)
        slowest = table.bottleneck(len(order), 0, len(model.layers))
        if slowest < (np.inf if best is None else best.seconds):
            best = VirtualWorker(order, table.spans(len(order), 0, len(model.layers)), in_flight, slowest)
    return best


def node_partition(nodes: Sequence[Sequence[Gpu]]) -> list[list[Gpu]]:
    """Return virtual workers of one node each: links within are fast, and workers differ as their nodes do."""
    return [list(node) for node in nodes]


def equal_distribution(nodes: Sequence[Sequence[Gpu]]) -> list[list[Gpu]]:
    """Return virtual workers of one GPU from every node: all are equal, and links within cross nodes."""
    if len({len(node) for node in nodes}) != 1:
        raise LaconicError("an equal distribution takes one GPU from every node in turn: nodes need as many GPUs each")
    return [list(gpus) for gpus in zip(*nodes, strict=True)]


def hybrid_distribution(nodes: Sequence[Sequence[Gpu]]) -> list[list[Gpu]]:
    """Return virtual workers of half of the fastest and half of the slowest node, of the second of both, and so on:
    pairs of nodes about as fast as each other, with two GPUs of a kind side by side."""
    if len(nodes) % 2 or len({len(node) for node in nodes}) != 1 or len(nodes[0]) % 2:
        raise LaconicError("a hybrid distribution pairs nodes: give an even number of them, each with as many GPUs")
    ranked = sorted(nodes, key=lambda node: sum(gpu.slowness for gpu in node))
    half = len(nodes[0]) // 2
    found = []
    for fast, slow in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
        found += [[*fast[:half], *slow[:half]], [*fast[half:], *slow[half:]]]
    return found

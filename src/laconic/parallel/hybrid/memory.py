"""The memory of each stage: parameters, gradients, the optimizer's state, and activations in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.parallel.hybrid.runs import FULL, NONE, Array, Run, Runs

_WEIGHT, _OPTIMIZER = 2.0, 12.0  # bytes a parameter: 16 bits; an exact copy and Adam's two states in 32 bits
RESERVED_SHARE = 0.08
"""Of a GPU's memory: context, libraries' work spaces, gaps between allocations."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one GPU of a stage, by part."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array

    @property
    def total(self) -> Array:
        return self.weights + self.gradients + self.optimizer + self.activations


def stage_memory(runs: Runs, stage: Array | int) -> StageMemory:
    """Return the memory of a stage, from 0 on; the first holds the embedding, the last a copy of it and the scores.

    Activations of a layer are those of Korthikanti et al. 2022: s b h (10 + 24/t + 5 a s/(h t)) bytes, without the last
    term where attention is recomputed, and 2 s b h where only a layer's input is kept, with one layer at work.
    """
    last = runs.pipeline - 1
    ends = np.where(stage == 0, 1.0, 0.0) + np.where((stage == last) & (last > 0), 1.0, 0.0)
    positions = np.where(stage == 0, runs.sequence * runs.hidden, 0.0)  # each tensor-parallel rank has them all
    parameters = runs.stage_layers * runs.layer_parameters + ends * runs.embedding_parameters + positions
    owners = np.where(runs.sharded > 0, runs.data, 1.0)
    values = runs.tokens * runs.hidden
    scores = 5 * runs.heads * runs.sequence / (runs.hidden * runs.tensor)
    whole = values * (10 + 24 / runs.tensor + scores)
    kept = np.where(
        runs.recompute == FULL, 2 * values, np.where(runs.recompute == NONE, whole, whole - values * scores)
    )
    at_work = np.where(runs.recompute == NONE, 0.0, whole - kept)
    output = np.where(stage == last, 6 * runs.tokens * runs.vocabulary / runs.tensor, 0.0)
    return StageMemory(
        _WEIGHT * parameters,
        runs.sum_bytes * parameters,
        _OPTIMIZER * parameters / owners,
        layers_in_flight(runs, stage) * kept + at_work + output,
    )


def layers_in_flight(runs: Runs, stage: Array | int) -> Array:
    """Return the layers of a stage times the microbatches whose activations they hold at once, at most.

    One forward, one backward: p - i microbatches on stage i. Interleaved, 2 (p - i - 1) + (v - 1) p + 1 chunks.
    """
    behind = runs.pipeline - stage
    plain = np.minimum(runs.microbatches, behind)
    chunks = np.minimum(runs.microbatches * runs.chunks, 2 * (behind - 1) + (runs.chunks - 1) * runs.pipeline + 1)
    return runs.stage_layers * np.where(runs.chunks > 1, chunks / runs.chunks, plain)


def largest_bytes(runs: Runs) -> Array:
    """Return the memory of the stage that needs most: the first or the last, which hold the embedding too."""
    first, last = stage_memory(runs, 0), stage_memory(runs, runs.pipeline - 1)
    return np.maximum(first.total, last.total)


def by_stage(run: Run) -> list[StageMemory]:
    """Return the memory of every stage of one run."""
    runs = Runs.of([run])
    return [stage_memory(runs, stage) for stage in range(run.layout.pipeline)]

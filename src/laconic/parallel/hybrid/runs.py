"""Iterations to be priced: one as a value, and many as arrays with one entry for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.errors import LaconicError
from laconic.parallel.hybrid.transformer import Transformer

Array = NDArray[np.float64]
NONE, SELECTIVE, FULL = 0, 1, 2
RECOMPUTE = ("none", "selective", "full")
"""What is computed again in backward: nothing, what is inside attention (Korthikanti et al. 2022), each layer whole."""


@dataclass(frozen=True)
class Layout:
    """How a model is laid out on GPUs, and how their messages are sent; GPUs = pipeline × tensor × data.

    - `pipeline`, `tensor`, `data`: the sizes of the grid. Neighbouring ranks share a tensor, then the data, so that
      stages are the farthest apart, as in Megatron-LM.
    - `microbatch`: samples of a microbatch.
    - `chunks`: parts of the model on each stage; with more than one the pipeline is interleaved.
    - `recompute`: an entry of `RECOMPUTE`, by number.
    - `sharded`: whether the optimizer's state is divided among the data-parallel ranks (ZeRO's first stage).
    - `gradient_bytes`: what data parallelism sends for each parameter.
    - `sum_bytes`: of each gradient to which microbatches are added.
    - `overlapped`: whether gradients are sent while the last backward computes.
    - `split_sends`: whether tensor-parallel ranks send a part each between stages, and gather it there.
    - `sends_in_turn`: whether a stage sends and receives one after the other, instead of both ways at once.
    """

    pipeline: int = 1
    tensor: int = 1
    data: int = 1
    microbatch: int = 1
    chunks: int = 1
    recompute: int = FULL
    sharded: bool = False
    gradient_bytes: float = 2.0
    sum_bytes: float = 2.0
    overlapped: bool = False
    split_sends: bool = True
    sends_in_turn: bool = False

    @property
    def gpus(self) -> int:
        return self.pipeline * self.tensor * self.data


@dataclass(frozen=True)
class Run:
    """One iteration: a model, the samples of its batch, and the layout."""

    model: Transformer
    batch: int
    layout: Layout

    def __post_init__(self) -> None:
        layout = self.layout
        if self.batch % (layout.data * layout.microbatch):
            raise LaconicError(
                f"a batch of {self.batch} does not divide among {layout.data} pipelines in microbatches of "
                f"{layout.microbatch}: choose sizes that divide it"
            )


@dataclass(frozen=True)
class Runs:
    """Many iterations, with an array for each field of the model and of the layout; arrays broadcast."""

    layers: Array
    hidden: Array
    heads: Array
    sequence: Array
    vocabulary: Array
    batch: Array
    pipeline: Array
    tensor: Array
    data: Array
    microbatch: Array
    chunks: Array
    recompute: Array
    sharded: Array
    gradient_bytes: Array
    sum_bytes: Array
    overlapped: Array
    split_sends: Array
    sends_in_turn: Array

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Runs:
        """Return the arrays of a list of runs."""
        rows = [vars(run.model) | {"batch": run.batch} | vars(run.layout) for run in runs]
        return cls(**{field.name: np.array([row[field.name] for row in rows], float) for field in fields(cls)})

    @classmethod
    def of_layouts(cls, model: Transformer, batch: int, **columns: Any) -> Runs:
        """Return the runs of one model in layouts that are given as columns; what is left out has its default."""
        values = vars(model) | {"batch": batch} | vars(Layout()) | columns
        return cls(**{name: np.asarray(value, float) for name, value in values.items()})

    @property
    def microbatches(self) -> Array:
        """The microbatches of each pipeline."""
        return self.batch / (self.data * self.microbatch)

    @property
    def stage_layers(self) -> Array:
        """The layers of each stage."""
        return self.layers / self.pipeline

    @property
    def tokens(self) -> Array:
        """The tokens of a microbatch."""
        return self.microbatch * self.sequence

    @property
    def layer_parameters(self) -> Array:
        """The parameters of a layer on one tensor-parallel rank."""
        return (12 * self.hidden**2 + 13 * self.hidden) / self.tensor

    @property
    def embedding_parameters(self) -> Array:
        """The parameters of the embedding, which is also the output matrix, on one tensor-parallel rank."""
        return self.vocabulary * self.hidden / self.tensor

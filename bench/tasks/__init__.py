"""Tasks that the tables of losses are made of, each a file: what is trained, on which batches, and how it is judged.

A task is written as functions of a module, so that one and the same text trains a module of one worker, or the stacked
parameters of many workers at once (`torch.func.functional_call` under `vmap`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor, nn


class Task(Protocol):
    """A training task written as functions of a module: what the tables of losses are made of."""

    name: str
    """As the tables call it: "cifar"."""
    kind: str
    """Of model: "transformer", "convolutional", "recommender" or "classifier"."""
    samples: int
    """Of one worker's batch: images, interactions, or tokens."""
    size: int | None
    """Of the training data, in the same; None where every sample is fresh."""
    data: str
    """A hash of what is trained on, where that differs from machine to machine; else empty."""

    def build(self, seed: int) -> nn.Module:
        """Return the model in fp32 on the CPU; its parameters depend on the seed alone."""
        ...

    def batch(self, seed: int, step: int, worker: int) -> tuple[Tensor, ...]:
        """Return a batch on the task's device. It depends on these three alone, and all have equal shapes."""
        ...

    def loss(self, model: Callable[..., Tensor], *batch: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar; for a plain backward pass, and for `vmap` of a gradient."""
        ...

    def evaluate(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """Return the loss on everything that is held out, first, and then what else says how good the model is."""
        ...

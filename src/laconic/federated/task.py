"""What clients learn: a model, samples, a loss, and how the result is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Task(Protocol):
    """A model and the samples of all clients, by their numbers."""

    def build(self, seed: int) -> nn.Module:
        """Return the model before training."""
        ...

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        """Return the mean loss of a model over these samples."""
        ...

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return what the model is judged by, on data that no client has."""
        ...


@dataclass(frozen=True, eq=False)
class Classification:
    """A task of telling classes apart.

    - `make`: returns the model, from the seed of its first values.
    - `inputs`, `labels`: the clients' samples.
    - `test_inputs`, `test_labels`: those by which the model is judged.

    Clients train on the device on which the samples lie.
    """

    make: Callable[[], nn.Module]
    inputs: Tensor
    labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().to(self.inputs.device)

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        return functional.cross_entropy(model(self.inputs[samples]), self.labels[samples])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        scores = model(self.test_inputs)
        right = (scores.argmax(1) == self.test_labels).float().mean()
        return {"loss": float(functional.cross_entropy(scores, self.test_labels)), "accuracy": float(right)}

"""Logistic regression with a penalty, and its optimum: a strongly convex task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from laconic.federated.partition import Shards, by_label
from tests.federated.digits import digits

PENALTY = 0.1


@dataclass(frozen=True, eq=False)
class Logistic:
    """Is a digit odd: the mean logistic loss, and a penalty of the squared weights."""

    inputs: Tensor
    labels: Tensor

    def build(self, seed: int) -> nn.Module:
        model = nn.Linear(self.inputs.shape[1], 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        weight: Tensor = model.weight  # type: ignore[assignment]
        scores = self.inputs[samples] @ weight[0] * self.labels[samples]
        return functional.softplus(-scores).mean() + PENALTY / 2 * weight.square().sum()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return how far the loss over all samples is from its least."""
        return {"loss": float(self.loss(model, torch.arange(len(self.labels)))) - least_loss()}


@cache
def logistic() -> Logistic:
    """Return the task on a thousand digits, with a constant input beside the pixels."""
    inputs = digits().inputs[:1000]
    return Logistic(torch.cat([inputs, torch.ones(1000, 1)], 1), 2.0 * (digits().labels[:1000] % 2) - 1)


def skewed(clients: int, seed: int) -> Shards:
    """Return clients of few digits each."""
    return by_label(digits().labels[:1000].numpy(), clients, 2, seed)


@cache
def least_loss() -> float:
    """Return the least loss, by Newton's method."""
    x, y = logistic().inputs.double().numpy(), logistic().labels.double().numpy()
    w = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(y * (x @ w)))
        gradient = -(x * (y * p)[:, None]).mean(0) + PENALTY * w
        curvature = (x * (p * (1 - p))[:, None]).T @ x / len(y) + PENALTY * np.eye(len(w))
        w -= np.linalg.solve(curvature, gradient)
    return float(np.log1p(np.exp(-y * (x @ w))).mean() + PENALTY / 2 * (w @ w))

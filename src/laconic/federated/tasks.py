"""Tasks by name (`digits`, `shakespeare`), or by the place of a function of one's own, such as `tasks.py:speech`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laconic.errors import LaconicError
from laconic.federated.shakespeare import shakespeare
from laconic.federated.task import Classification, Task
from laconic.places import class_at, is_place

_TEST = 360


@cache
def digits(hidden: int = 32) -> Classification:
    """Return the task of telling digits apart, by a network of one hidden layer: 1,437 small images, and 360 that no
    client has."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise LaconicError("digits are scikit-learn's, which is not installed: pip install scikit-learn") from error
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    inputs = torch.tensor(data.data[order] / 16.0, dtype=torch.float32)
    labels = torch.tensor(data.target[order])
    make = partial(_two_layers, hidden)
    return Classification(make, inputs[:-_TEST], labels[:-_TEST], inputs[-_TEST:], labels[-_TEST:])


def _two_layers(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


@dataclass(frozen=True)
class Blank:
    """A model of so many parameters in one tensor, which nobody trains: for plans."""

    parameters: int

    def build(self, seed: int) -> nn.Module:
        return nn.ParameterDict({"weight": torch.zeros(self.parameters)})

    def loss(self, model: nn.Module, samples: Tensor) -> Tensor:
        return torch.zeros(())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


NAMED: dict[str, Callable[[], Task]] = {"digits": digits, "shakespeare": shakespeare}


def find_task(name: str) -> tuple[Task, Tensor]:
    """Return the task of a name, or that which the function at a place returns, and the labels of its samples."""
    make: Any
    if is_place(name):
        make = class_at(name)
    elif name in NAMED:
        make = NAMED[name]
    else:
        raise LaconicError(
            f"no task is called {name}; write {', '.join(NAMED)}, or the place of a function of yours that returns "
            "one, as tasks.py:mine"
        )
    task = make()
    labels = getattr(task, "labels", None)
    if not isinstance(labels, Tensor):
        raise LaconicError(
            f"the task {name} has no labels, by which its samples are divided; give it a tensor `labels`"
        )
    return task, labels

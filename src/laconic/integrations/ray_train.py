"""Ray Train: `prepare(strategy, model, optimizer)` in the place of `ray.train.torch.prepare_model(model)`.

In a training function of a `TorchTrainer`, Ray has made the process group and said which worker this is. Loaders are
prepared as always; the model is moved to its device, and not wrapped in DDP.
"""

from __future__ import annotations

from typing import Any

from ray.train.torch import prepare_model
from torch import nn, optim

from laconic.api.distribute import distribute
from laconic.strategy import Strategy


def prepare(
    strategy: str | Strategy | None, model: nn.Module, optimizer: optim.Optimizer, **options: Any
) -> tuple[nn.Module, optim.Optimizer]:
    """Place a model on this worker's device and distribute it with its optimizer.

    - `strategy`: as for `laconic.distribute`.
    - `model`, `optimizer`: both as they were made, in the training function.
    - `options`: those of `laconic.distribute`.
    """
    return distribute(prepare_model(model, parallel_strategy=None), optimizer, strategy, **options)

"""The base of optimizers that update every layer by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Layerwise(Optimizer):
    """An optimizer that updates each parameter that has a gradient by itself, with its group's settings."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._step(w, w.grad, group)
        return loss

    @abstractmethod
    def _step(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None: ...

"""Gradient accumulation under a training loop that was written without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import optim
from torch.nn.parallel import DistributedDataParallel

from laconic.errors import ContractError
from laconic.runtime.optimizer_wrapper import OptimizerWrapper


class AccumulatingOptimizer(OptimizerWrapper):
    """An optimizer that steps in every `steps`-th call of `step()`, with the mean gradient of the micro-steps since.

    In between, DDP's gradient exchange is switched off (as its `no_sync` does) and `zero_grad()` keeps the sum so far.
    The sum is divided before it is exchanged, so that clipping before the real step sees the mean.
    """

    def __init__(self, base: optim.Optimizer, model: DistributedDataParallel, steps: int) -> None:
        self._model, self._steps, self._calls = model, steps, 0
        super().__init__(base)
        self._set_gradient_sync()

    @property
    def _accumulating(self) -> bool:
        return self._calls % self._steps != 0

    def _set_gradient_sync(self) -> None:
        """Set the flag that DDP reads in forward: only the last micro-step of a large batch exchanges gradients."""
        self._model.require_backward_grad_sync = (self._calls + 1) % self._steps == 0

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step the wrapped optimizer if this call ends a large batch, else only count the micro-step."""
        if closure is not None:
            raise ContractError("step(closure) evaluates a batch anew, which cannot be added up: call step() without")
        self._calls += 1
        if not self._accumulating:
            self.base.step()
        self._set_gradient_sync()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients after a real step; between real steps keep their sum."""
        if not self._accumulating:
            self.base.zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        raise ContractError(
            "GradScaler would unscale the same sum at every micro-step: train in bfloat16, which needs no scaler"
        )

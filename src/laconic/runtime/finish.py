"""`laconic.finish`: let every sync rule settle, so that all workers hold one model."""

from __future__ import annotations

from torch import nn, optim

from laconic.errors import ContractError
from laconic.runtime.handed_over import rival_of
from laconic.runtime.optimizer import DistributedOptimizer
from laconic.values.run_config import RunConfig


def finish(model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Complete what is in flight and average workers whose models have diverged. Every worker calls this.

    Call it before the model is evaluated or saved: local rules then hold the average, late ones have applied what they
    were waiting for, and `one_shot_averaging` communicates here alone. For `bsp` it does nothing. Training may continue
    afterwards, from the average. Another library's method is left as that library leaves it.

    - `model`, `optimizer`: what `distribute` returned.
    """
    ours = isinstance(optimizer, DistributedOptimizer)
    if rival_of(optimizer) is not None or (RunConfig.current().alone and not ours):
        return
    if not isinstance(optimizer, DistributedOptimizer) or optimizer.session.model is not model:
        raise ContractError("finish() takes the model and the optimizer that one distribute() returned")
    optimizer.session.settle()

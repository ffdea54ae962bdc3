"""laconic: train PyTorch models across machines while saying as little as possible over the wire.

    model, optimizer = laconic.distribute(model, optimizer, "bsp / none / allreduce")

Names load on first use, so that `laconic --help` answers without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from laconic._version import __version__

if TYPE_CHECKING:
    from laconic import optim
    from laconic.engine.batches import batch_size
    from laconic.engine.checkpoint import checkpoint, resume
    from laconic.engine.clip import clip_grad_norm_
    from laconic.engine.connect import rank, size
    from laconic.engine.ddp_hook import ddp_hook
    from laconic.engine.distribute import distribute, undistribute
    from laconic.engine.finish import finish
    from laconic.engine.metrics import log
    from laconic.engine.shard import ShardSampler, shard
    from laconic.engine.virtual.simulate import simulate
    from laconic.errors import (
        ContractError,
        Disagreement,
        LaconicError,
        NonFinite,
        StrategyError,
        WorkerLost,
    )
    from laconic.planner.plan import plan
    from laconic.strategy import Strategy

_HOMES = {
    "ContractError": "errors",
    "Disagreement": "errors",
    "LaconicError": "errors",
    "NonFinite": "errors",
    "ShardSampler": "engine.shard",
    "Strategy": "strategy",
    "StrategyError": "errors",
    "WorkerLost": "errors",
    "batch_size": "engine.batches",
    "checkpoint": "engine.checkpoint",
    "clip_grad_norm_": "engine.clip",
    "ddp_hook": "engine.ddp_hook",
    "distribute": "engine.distribute",
    "finish": "engine.finish",
    "log": "engine.metrics",
    "plan": "planner.plan",
    "rank": "engine.connect",
    "resume": "engine.checkpoint",
    "shard": "engine.shard",
    "simulate": "engine.virtual.simulate",
    "size": "engine.connect",
    "undistribute": "engine.distribute",
}

__all__ = [
    "ContractError",
    "Disagreement",
    "LaconicError",
    "NonFinite",
    "ShardSampler",
    "Strategy",
    "StrategyError",
    "WorkerLost",
    "__version__",
    "batch_size",
    "checkpoint",
    "clip_grad_norm_",
    "ddp_hook",
    "distribute",
    "finish",
    "log",
    "optim",
    "plan",
    "rank",
    "resume",
    "shard",
    "simulate",
    "size",
    "undistribute",
]


def __getattr__(name: str) -> Any:
    if name == "optim":
        return importlib.import_module("laconic.optim")
    if name not in _HOMES:
        raise AttributeError(f"laconic has no {name!r}")
    value = getattr(importlib.import_module(f"laconic.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

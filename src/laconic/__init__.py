"""laconic: train PyTorch models across machines while sending as little as possible over the network.

    model, optimizer = laconic.distribute(model, optimizer, "bsp / none / allreduce")

Names load on first use, so that `laconic --help` answers without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from laconic._version import __version__

if TYPE_CHECKING:
    from laconic import optim
    from laconic.api.distribute import distribute, undistribute
    from laconic.api.mesh import init_device_mesh
    from laconic.api.over_workers import gather, mean
    from laconic.errors import (
        ContractError,
        Disagreement,
        LaconicError,
        NonFinite,
        StrategyError,
        WorkerLost,
    )
    from laconic.integrations.ddp_hook import ddp_hook
    from laconic.integrations.fsdp_hooks import fsdp_hooks
    from laconic.network.network_tree import Level, LinkChange, Network
    from laconic.planner.plan import plan
    from laconic.planner.values import Advice
    from laconic.report.compare import compare
    from laconic.runtime.batch_size import batch_size
    from laconic.runtime.checkpoint import checkpoint, resume
    from laconic.runtime.clip import clip_grad_norm_
    from laconic.runtime.current_worker import rank, size
    from laconic.runtime.data_shard import ShardSampler, shard
    from laconic.runtime.finish import finish
    from laconic.runtime.metric_sinks import report_to
    from laconic.runtime.metrics import log
    from laconic.runtime.own_device import device
    from laconic.runtime.traffic import Traffic, traffic
    from laconic.runtime.training_state import TrainingState
    from laconic.strategy import Strategy
    from laconic.values.worker_speeds import Stragglers
    from laconic.virtual.batched import batched
    from laconic.virtual.compute import Compute
    from laconic.virtual.membership import Event
    from laconic.virtual.rpc import Fault, Faults
    from laconic.virtual.simulate import Simulated, simulate

_HOMES = {
    "Advice": "planner.values",
    "Compute": "virtual.compute",
    "ContractError": "errors",
    "Disagreement": "errors",
    "Event": "virtual.membership",
    "Fault": "virtual.rpc",
    "Faults": "virtual.rpc",
    "LaconicError": "errors",
    "Level": "network.network_tree",
    "LinkChange": "network.network_tree",
    "Network": "network.network_tree",
    "NonFinite": "errors",
    "ShardSampler": "runtime.data_shard",
    "Simulated": "virtual.simulate",
    "Stragglers": "values.worker_speeds",
    "Strategy": "strategy",
    "StrategyError": "errors",
    "Traffic": "runtime.traffic",
    "TrainingState": "runtime.training_state",
    "WorkerLost": "errors",
    "batch_size": "runtime.batch_size",
    "batched": "virtual.batched",
    "checkpoint": "runtime.checkpoint",
    "clip_grad_norm_": "runtime.clip",
    "compare": "report.compare",
    "ddp_hook": "integrations.ddp_hook",
    "device": "runtime.own_device",
    "distribute": "api.distribute",
    "finish": "runtime.finish",
    "fsdp_hooks": "integrations.fsdp_hooks",
    "gather": "api.over_workers",
    "init_device_mesh": "api.mesh",
    "log": "runtime.metrics",
    "mean": "api.over_workers",
    "plan": "planner.plan",
    "rank": "runtime.current_worker",
    "report_to": "runtime.metric_sinks",
    "resume": "runtime.checkpoint",
    "shard": "runtime.data_shard",
    "simulate": "virtual.simulate",
    "size": "runtime.current_worker",
    "traffic": "runtime.traffic",
    "undistribute": "api.distribute",
}

__all__ = [
    "Advice",
    "Compute",
    "ContractError",
    "Disagreement",
    "Event",
    "Fault",
    "Faults",
    "LaconicError",
    "Level",
    "LinkChange",
    "Network",
    "NonFinite",
    "ShardSampler",
    "Simulated",
    "Stragglers",
    "Strategy",
    "StrategyError",
    "Traffic",
    "TrainingState",
    "WorkerLost",
    "__version__",
    "batch_size",
    "batched",
    "checkpoint",
    "clip_grad_norm_",
    "compare",
    "ddp_hook",
    "device",
    "distribute",
    "finish",
    "fsdp_hooks",
    "gather",
    "init_device_mesh",
    "log",
    "mean",
    "optim",
    "plan",
    "rank",
    "report_to",
    "resume",
    "shard",
    "simulate",
    "size",
    "traffic",
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

"""The server's half of a rule without a server: one shard that holds one vector, and pushes and reads by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from laconic.architecture.server.actor import Pull, Push, ServerRule
from laconic.architecture.server.sharding import Range
from laconic.architecture.server.store import Store
from laconic.values.tensor_spec import TensorSpec
from laconic.worker import Field


class Served:
    """A rule's server with a vector of float64 that begins as zeros; SGD steps on it."""

    def __init__(self, rule: ServerRule, workers: int, rate: float = 1.0, length: int = 1) -> None:
        x = torch.zeros(length, dtype=torch.float64)
        optimizer = torch.optim.SGD([x], lr=rate)
        self.rule = rule
        self.store = Store([Range(0, 0, length, 0)], [TensorSpec("x", (length,), x.dtype)], [x], optimizer, workers)
        rule.open(self.store)

    @property
    def value(self) -> list[float]:
        return self.store.values[0].tolist()

    def push(self, worker: int, *values: float, version: int | None = None, **fields: Any) -> Mapping[str, Field]:
        """A push of what was computed at this version; default: at the present one."""
        self.store.clocks[worker] += 1
        read = self.store.version if version is None else version
        pushed = Push(worker, self.store.clocks[worker], read, [torch.tensor(values, dtype=torch.float64)], fields)
        return self.rule.receive(self.store, pushed)

    def pull(self, worker: int, **fields: Any) -> Mapping[str, Field] | None:
        """The fields that a read answers with; None where it has to wait."""
        asked = Pull(worker, self.store.clocks[worker], fields)
        return self.rule.view(self.store, asked)[0] if self.rule.readable(self.store, asked) else None

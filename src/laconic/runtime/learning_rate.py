"""A learning rate that is multiplied during a step only: schedulers see their own numbers before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


def scaled(apply: Callable[[], Any], optimizer: Optimizer | None, factor: float) -> Callable[[], Any]:
    """Return `apply` with every group's learning rate multiplied by a factor while it runs."""
    if factor == 1.0 or optimizer is None:
        return apply

    def step() -> Any:
        before = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = rate * factor
        try:
            return apply()
        finally:
            for group, rate in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = rate

    return step

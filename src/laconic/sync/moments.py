"""Rules in the place of Adam's or LAMB's step: the optimizer's moments, one parameter at a time, as they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.errors import ContractError
from laconic.sync.base import Sync, SyncContext

SIGNS = "flat+scaled_sign+two_hop(memory=true)+error_feedback / allreduce"
"""How momenta travel: one bit each, with memories at workers and owners."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Of one parameter, with this worker's gradient and the settings of its group; never corrected for their bias."""

    parameter: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor
    group: Mapping[str, Any]
    shrinks: bool

    @property
    def rate(self) -> float:
        return float(self.group["lr"])

    @property
    def shrinking(self) -> float:
        """By what a step multiplies the parameter, where weight decay acts on it and not on the gradient."""
        return 1 - self.rate * self.group["weight_decay"] if self.shrinks else 1.0

    @property
    def size(self) -> Tensor:
        """√v + ε, which a step is divided by."""
        return self.square.sqrt() + float(self.group["eps"])

    def taking(self, gradient: Tensor) -> Tensor:
        """What the momentum becomes with a gradient."""
        return torch.lerp(self.mean, gradient, 1 - self.group["betas"][0])

    def masked(self, said: Tensor) -> Tensor:
        """A sign cannot say zero: where no gradient ever was, nothing is meant, and √v + ε would make much of it."""
        return torch.where(self.square > 0, said, 0.0)

    def step(self) -> None:
        if self.shrinks:
            self.parameter.mul_(self.shrinking)
        self.parameter.sub_(self.rate * self.mean / self.size)


@dataclass(frozen=True)
class OfMoments(Sync):
    """What such rules share: they stand in for `step()`, and read and write the user's optimizer's own state."""

    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    begins: ClassVar[bool] = False
    """Whether it can be the first to make steps; others go on from what an optimizer has gathered."""
    of: ClassVar[str] = "torch.optim.Adam or AdamW"
    beside: ClassVar[tuple[str, ...]] = ()
    """What it needs of the optimizer's state beside the two moments."""
    decays_gradient: ClassVar[bool] = True
    """Whether weight decay that is not on the parameters themselves is part of the gradient."""

    def moments(self, context: SyncContext) -> list[Moments]:
        settings = {p: group for group in context.optimizer.param_groups for p in group["params"]}
        found = []
        for p, gradient in zip(context.parameters, context.gradients, strict=True):
            group, state = settings[p], context.optimizer.state[p]
            if self.begins and not state and "betas" in group:
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            lacks = any(name not in state for name in ("exp_avg", "exp_avg_sq", *self.beside))
            if lacks or group.get("amsgrad") or group.get("maximize"):
                begin = "" if self.begins else f": begin with some steps, as in `bsp until step 1000, then {self.name}`"
                raise ContractError(f"{self.name} goes on from the state of {self.of}, plain and minimizing{begin}")
            shrinks = bool(group["weight_decay"]) and _decouples(context, group)
            if self.decays_gradient and group["weight_decay"] and not shrinks:
                gradient = gradient + group["weight_decay"] * p
            found.append(Moments(p, gradient, state["exp_avg"], state["exp_avg_sq"], group, shrinks))
        return found


def _decouples(context: SyncContext, group: Mapping[str, Any]) -> bool:
    """Whether weight decay acts on the parameters themselves."""
    return isinstance(context.optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))

"""The base of rules that replace the step of Adam or LAMB and work on the optimizer's moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from laconic.errors import ContractError
from laconic.sync.base import Sync, SyncContext

SIGNS = "flat+scaled_sign+two_hop(memory=true)+error_feedback / allreduce"
"""The compression and architecture by which momenta are averaged: one bit each, with memories at workers and owners."""


@dataclass(frozen=True, eq=False)
class Moments:
    """The two moments of one parameter, without bias correction, with its gradient and the settings of its group."""

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
    def decay_factor(self) -> float:
        """The factor by which decoupled weight decay multiplies the parameter in a step."""
        return 1 - self.rate * self.group["weight_decay"] if self.shrinks else 1.0

    @property
    def denominator(self) -> Tensor:
        """√v + ε, by which a step is divided."""
        return self.square.sqrt() + float(self.group["eps"])

    def updated_mean(self, gradient: Tensor) -> Tensor:
        """Return the momentum after an update with this gradient."""
        return torch.lerp(self.mean, gradient, 1 - self.group["betas"][0])

    def masked(self, decoded: Tensor) -> Tensor:
        """Return the decoded momentum with zeros where no gradient ever was.

        A sign cannot express zero, and there the division by √v + ε would magnify it.
        """
        return torch.where(self.square > 0, decoded, 0.0)

    def step(self) -> None:
        """Move the parameter by rate·m/(√v + ε), after decoupled weight decay."""
        if self.shrinks:
            self.parameter.mul_(self.decay_factor)
        self.parameter.sub_(self.rate * self.mean / self.denominator)


@dataclass(frozen=True)
class MomentRule(Sync):
    """A rule that replaces `optimizer.step()` and reads and writes the state of the user's Adam-like optimizer."""

    late: ClassVar[bool] = True
    replaces_step: ClassVar[bool] = True
    can_start: ClassVar[bool] = False
    """Whether the rule can make the first steps; others continue from the state of an optimizer."""
    continues: ClassVar[str] = "torch.optim.Adam or AdamW"
    """The optimizers whose state the rule continues from, for error messages."""
    extra_state: ClassVar[tuple[str, ...]] = ()
    """The entries that the rule needs of the optimizer's state besides the two moments."""
    decays_gradient: ClassVar[bool] = True
    """Whether weight decay that is not decoupled is added to the gradient."""

    @property
    def reads_optimizer_state(self) -> bool:
        return True

    def moments(self, context: SyncContext) -> list[Moments]:
        """Return the moments of every parameter, or refuse an optimizer whose state the rule cannot continue."""
        settings = {p: group for group in context.optimizer.param_groups for p in group["params"]}
        found = []
        for p, gradient in zip(context.parameters, context.gradients, strict=True):
            group, state = settings[p], context.optimizer.state[p]
            if self.can_start and not state and "betas" in group:
                state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            lacks = any(name not in state for name in ("exp_avg", "exp_avg_sq", *self.extra_state))
            if lacks or group.get("amsgrad") or group.get("maximize"):
                begin = (
                    "" if self.can_start else f": begin with some steps, as in `bsp until step 1000, then {self.name}`"
                )
                raise ContractError(
                    f"{self.name} goes on from the state of {self.continues}, plain and minimizing{begin}"
                )
            shrinks = bool(group["weight_decay"]) and _decouples(context, group)
            if self.decays_gradient and group["weight_decay"] and not shrinks:
                gradient = gradient + group["weight_decay"] * p
            found.append(Moments(p, gradient, state["exp_avg"], state["exp_avg_sq"], group, shrinks))
        return found


def _decouples(context: SyncContext, group: Mapping[str, Any]) -> bool:
    """Return whether weight decay acts on the parameters themselves."""
    return isinstance(context.optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay"))

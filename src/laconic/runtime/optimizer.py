"""The optimizer a user gets back: the same groups and state, with every step reported to the session."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

from laconic.errors import ContractError
from laconic.runtime.optimizer_wrapper import SCALING, OptimizerWrapper
from laconic.runtime.session import Session
from laconic.runtime.sharded.local_shard import is_sharded
from laconic.runtime.unaveraged import Exchanges


class DistributedOptimizer(OptimizerWrapper):
    """An optimizer that steps on the averaged gradients and then lets the sync rules communicate."""

    def __init__(self, base: optim.Optimizer, session: Session) -> None:
        self.session = session
        self._warned = False
        super().__init__(base)
        session.optimizer = base
        self._exchanges = Exchanges.watch(self, session)
        parameters = list(session.model.parameters())
        self._shared_step = None
        if not any(map(is_sharded, parameters)):  # workers with shards have no step in common
            self._shared_step = session.worker.stepper(
                base, parameters, lambda: not session.arrangement.replicas_differ and not session.arrangement.late
            )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Make one step of the user's optimizer on the averaged gradients, then let the sync rules communicate.

        - `closure`: zeroes the gradients, computes the loss and its gradients, and returns the loss, as for any
          optimizer of torch. It is called once, before the step, and its loss is returned. An optimizer that cannot do
          without it (`LBFGS`) calls it as often as it likes under a plain `bsp`; under other strategies, which expect
          one backward pass in a step, it is refused.
        """
        loss = None
        plain = self.session.arrangement.plainly_synchronous
        if closure is not None and not (plain and _may_evaluate_again(self.base)):
            if _needs_closure(self.base):
                raise ContractError(
                    f"{type(self.base).__name__} evaluates its closure several times in a step, which "
                    f"`{self.session.strategy}` cannot follow: use a strategy without compression and local steps, "
                    "such as `bsp`, or another optimizer"
                )
            with torch.enable_grad():
                loss, closure = closure(), None
        self.session.check_step()
        for name in SCALING:
            if name in self.__dict__:
                setattr(self.base, name, self.__dict__[name])
        losses: list[Any] = []

        def apply() -> None:
            if closure is not None:
                losses.append(self.base.step(self._agreeing(closure)))
            else:
                losses.append((self._shared_step or self.base.step)())

        try:
            self.session.step(apply)
        finally:
            for name in SCALING:
                self.base.__dict__.pop(name, None)
        self._exchanges.steps += 1
        return losses[-1] if loss is None and losses else loss

    def _agreeing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure with the mean loss of all workers: a line search decides by it, and all must decide
        alike."""

        def evaluate() -> Any:
            loss = closure()
            if loss is None:
                return None
            own = torch.as_tensor(loss).detach()
            return own.new_tensor(self.session.mean(float(own)))

        return evaluate

    @property
    def _step_supports_amp_scaling(self) -> bool:
        if self.session.arrangement.late or self.session.arrangement.has_memory:
            why = (
                "has it later"
                if self.session.arrangement.late
                else "would remember errors in units of a scale that changes"
            )
            raise ContractError(
                f"GradScaler needs the averaged gradient right after backward, and `{self.session.strategy}` {why}: "
                "train in bfloat16, which needs no scaler, or choose a strategy such as `bsp`"
            )
        return bool(getattr(self.base, "_step_supports_amp_scaling", False))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients, except while a sync rule accumulates them over several steps."""
        if not self.session.accumulating:  # a rule that sums gradients over steps keeps them
            self.session.deferred_step.drop()
            self.base.zero_grad(set_to_none)
        self.session.gradients_dropped()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters of the distributed model; others are refused."""
        if not self._made:
            return
        given = param_group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        refuse_strangers(given, self.session.model)
        super().add_param_group({**param_group, "params": given})

    def state_dict(self) -> dict[str, Any]:
        """Return the user's optimizer's state, after all averages in flight have been applied."""
        self.session.deferred_step.settle()
        if self.session.arrangement.has_memory and not self._warned:
            self._warned = True
            warnings.warn(
                f"`{self.session.strategy}` remembers something on every rank that a state_dict of one rank does not "
                "hold: save with laconic.checkpoint(path, model, optimizer)",
                stacklevel=2,
            )
        return super().state_dict()

    def __repr__(self) -> str:
        return f"{self.base!r} distributed by `{self.session.strategy}`"


def _may_evaluate_again(optimizer: optim.Optimizer) -> bool:
    """Return whether an optimizer may call its closure more than once; those of torch whose closure is optional do
    not."""
    is_torchs_own = type(optimizer).step.__module__.startswith("torch.optim.")
    return _needs_closure(optimizer) or not is_torchs_own


def _needs_closure(optimizer: optim.Optimizer) -> bool:
    """Return whether an optimizer cannot step without a closure: such a one evaluates it as often as it likes."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def refuse_strangers(parameters: list[torch.Tensor], model: nn.Module) -> None:
    """Refuse an optimizer that holds parameters outside the model: they would not be averaged, and workers would
    diverge."""
    known = {id(p) for p in model.parameters()}
    strangers = [tuple(p.shape) for p in parameters if id(p) not in known]
    if strangers:
        raise ContractError(
            f"the optimizer holds {len(strangers)} parameter(s) that the model does not (first of shape "
            f"{strangers[0]}): register them in the model, or give them an optimizer of their own"
        )

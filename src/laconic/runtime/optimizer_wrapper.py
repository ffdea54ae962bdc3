"""An optimizer that wraps the user's own: it has the same groups, state and methods, but its own `step`."""

from __future__ import annotations

from typing import Any

import torch
from torch import optim

SCALING = ("grad_scale", "found_inf")
"""The attributes that a GradScaler sets on an optimizer that unscales in its own kernel."""


class OptimizerWrapper(optim.Optimizer):
    """A real `torch.optim.Optimizer` (schedulers and scalers check), sharing the user's `param_groups` and `state`.

    Attributes that it does not define itself come from the user's optimizer, so that a schedule-free optimizer keeps
    its `train()` and `eval()`.
    """

    def __init__(self, base: optim.Optimizer) -> None:
        self.base = base
        self._made = False
        super().__init__([torch.zeros(1)], {})  # for this object's own step hooks; groups and state are the base's
        self._made = True

    # The base's own objects, looked up each time because load_state_dict() replaces them.
    param_groups = property(lambda self: self.base.param_groups, lambda self, value: None)  # type: ignore[assignment]
    state = property(lambda self: self.base.state, lambda self, value: None)  # type: ignore[assignment]
    defaults = property(lambda self: self.base.defaults, lambda self, value: None)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in self.__dict__ or name in SCALING:
            raise AttributeError(name)
        return getattr(self.base, name)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._made:
            self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict)

    def register_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.base.register_state_dict_pre_hook(hook, prepend)

    def register_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.base.register_state_dict_post_hook(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.base.register_load_state_dict_pre_hook(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> Any:
        return self.base.register_load_state_dict_post_hook(hook, prepend)

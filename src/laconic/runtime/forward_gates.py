"""Gates of the forward pass: callbacks that run before a module uses its parameters.

A module uses the parameters registered in it. Where its own `forward` is never called (an attention reads the weights
of its output projection by itself), the nearest enclosing module that is called stands for it. So one forward pass is
watched before the gates of single modules are used; until then all parameters belong to the model as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from laconic.runtime.autograd_hooks import OwnHook


class ForwardGates:
    """Hooks that call `before(which)` when a module that uses these parameters (by number) is about to run, and
    `before_saving()` when the model's state is read."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        before: Callable[[Sequence[int]], None],
        before_saving: Callable[[], None],
    ) -> None:
        self._model, self._before = model, before
        self._saving = model.register_state_dict_pre_hook(_as_hook(before_saving))
        self._parents: dict[int, nn.Module | None] = {}
        self._owned: list[tuple[nn.Module, int]] = []
        numbers = {id(p): i for i, p in enumerate(parameters)}
        for name, module in model.named_modules(remove_duplicate=False):
            parent = model.get_submodule(name.rpartition(".")[0]) if name else None
            self._parents.setdefault(id(module), parent)
            own = module._parameters.values()
            self._owned += [(module, numbers[id(p)]) for p in own if p is not None and id(p) in numbers]
        self._called: set[int] = set()
        self.known = False
        everything = tuple(range(len(parameters)))
        self._hooks: list[RemovableHandle] = [
            module.register_forward_pre_hook(_as_hook(partial(self._watch, module, everything)))
            for module in model.modules()
        ]
        self._end = model.register_forward_hook(_as_hook(self._assign_gates))

    def remove(self) -> None:
        for hook in (*self._hooks, self._end, self._saving):
            hook.remove()

    def _watch(self, module: nn.Module, everything: Sequence[int]) -> None:
        if module is self._model:
            self._called.clear()
            self._before(everything)
        self._called.add(id(module))

    def _assign_gates(self) -> None:
        """At the end of the first recorded forward pass, let each module wait for its own parameters from now on."""
        if self.known or not torch.is_grad_enabled():
            return
        self.known = True
        for hook in (*self._hooks, self._end):
            hook.remove()
        found: dict[nn.Module, list[int]] = {
            self._model: []
        }  # its hook runs in any case, since it marks the beginning of a pass
        for owner, i in self._owned:
            module: nn.Module | None = owner
            while module is not None and id(module) not in self._called:
                module = self._parents[id(module)]
            found.setdefault(module or self._model, []).append(i)
        self._hooks = [
            module.register_forward_pre_hook(_as_hook(partial(self._before, tuple(dict.fromkeys(which)))))
            for module, which in found.items()
        ]


def _as_hook(act: Callable[[], None]) -> OwnHook:
    """Return a hook that ignores its arguments; compiled models break their graph for it."""
    return OwnHook(torch.compiler.disable(lambda *ignored: act()))

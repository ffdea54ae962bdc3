"""Gates of the forward pass: who is told before a module uses its parameters.

A module uses the parameters registered in it. Where its own `forward` is never called (an attention reads the weights
of its output projection by itself), the nearest module around it that is called stands for it. So one forward pass is
watched before anybody may rely on gates; until then all parameters belong to the model as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from laconic.runtime.autograd_hooks import OwnHook


class ForwardGates:
    """Calls `before(which)` when a module that uses these parameters (by number) is about to run, and
    `before_saving()` when somebody asks for the model's state."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        before: Callable[[Sequence[int]], None],
        before_saving: Callable[[], None],
    ) -> None:
        self._model, self._before = model, before
        self._saving = model.register_state_dict_pre_hook(_told(before_saving))
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
            module.register_forward_pre_hook(_told(partial(self._watch, module, everything)))
            for module in model.modules()
        ]
        self._end = model.register_forward_hook(_told(self._seen))

    def remove(self) -> None:
        for hook in (*self._hooks, self._end, self._saving):
            hook.remove()

    def _watch(self, module: nn.Module, everything: Sequence[int]) -> None:
        if module is self._model:
            self._called.clear()
            self._before(everything)
        self._called.add(id(module))

    def _seen(self) -> None:
        """A forward pass has ended: from now on each module waits for its own."""
        if self.known or not torch.is_grad_enabled():
            return
        self.known = True
        for hook in (*self._hooks, self._end):
            hook.remove()
        found: dict[nn.Module, list[int]] = {self._model: []}  # it is told in any case: a pass begins
        for owner, i in self._owned:
            module: nn.Module | None = owner
            while module is not None and id(module) not in self._called:
                module = self._parents[id(module)]
            found.setdefault(module or self._model, []).append(i)
        self._hooks = [
            module.register_forward_pre_hook(_told(partial(self._before, tuple(dict.fromkeys(which)))))
            for module, which in found.items()
        ]


def _told(act: Callable[[], None]) -> OwnHook:
    """A hook that needs nothing of what it is given; compiled models step out of their graph for it."""
    return OwnHook(torch.compiler.disable(lambda *ignored: act()))

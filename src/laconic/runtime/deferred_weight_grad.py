"""Weight gradients that are computed after the rest of backward, in an order of their own.

A layer's backward is two products: the gradient of its input, which the layer before needs, and that of its weights,
which is only sent. A deferred module runs in a graph of its own, whose input gradient is computed when backward reaches
it and whose weight gradients are computed at the end: the same kernels, in another order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from laconic.runtime.autograd_hooks import OwnHook

_SIMPLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # one input, one output, gradients that do not depend on others


class DeferredWeightGradients:
    """The modules whose weight gradients are deferred, in the order in which they are then computed; weights that
    several modules share are never deferred."""

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], ready: Callable[[int], None]) -> None:
        self._model, self._ready = model, ready
        self._numbers = {id(p): i for i, p in enumerate(parameters)}
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        self._shared = {i for i, p in enumerate(parameters) if uses[id(p)] > 1}
        self._hooks: list[RemovableHandle] = []
        self._order: list[nn.Module] = []
        self._jobs: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        self._inside: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def choose(self, which: Sequence[int]) -> None:
        """Defer the weight gradients of these parameters' modules from now on, where a module's parameters are all
        chosen and belong to it alone."""
        self.remove()
        place = {i: k for k, i in enumerate(which) if i not in self._shared}
        for module in self._model.modules():
            own = [self._numbers.get(id(p), -1) for p in module.parameters(recurse=False)]
            if isinstance(module, _SIMPLE) and own and all(i in place for i in own):
                self._order.append(module)
                self._hooks.append(module.register_forward_pre_hook(OwnHook(self._enter)))
                self._hooks.append(module.register_forward_hook(OwnHook(self._leave)))
        self._order.sort(key=lambda m: min(place[self._numbers[id(p)]] for p in m.parameters(recurse=False)))

    @property
    def defers(self) -> bool:
        """Whether the end of a pass has anything to compute."""
        return bool(self._order)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._order = [], []

    def run(self) -> None:
        """Compute the deferred weight gradients, at the end of backward."""
        for module in self._order:
            jobs = self._jobs.pop(module, [])
            parameters = list(module.parameters(recurse=False))
            if not jobs:
                continue
            found = [torch.autograd.grad(output, parameters, gradient) for output, gradient in jobs]
            for parameter, parts in zip(parameters, zip(*found, strict=True), strict=True):
                more = sum(parts[1:], start=parts[0])  # a pass's own sum first, as autograd does it
                parameter.grad = more if parameter.grad is None else parameter.grad + more
            for parameter in reversed(parameters):
                self._ready(self._numbers[id(parameter)])

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        if not torch.is_grad_enabled() or len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            return None
        cut = inputs[0].detach().requires_grad_(inputs[0].requires_grad)
        self._inside[module] = (inputs[0], cut)
        return (cut,)

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Any:
        if module not in self._inside:
            return None
        outside, cut = self._inside.pop(module)
        keep = partial(self._jobs.setdefault, module, [])
        return _Bridge.apply(outside, torch.empty(0, requires_grad=True), output.detach(), (output, cut, keep))


class _Bridge(torch.autograd.Function):
    """An autograd function that joins the outer graph to a module's own graph and returns the input's gradient to
    it."""

    @staticmethod
    def forward(ctx: Any, outside: Tensor, dummy: Tensor, value: Tensor, inside: tuple[Any, ...]) -> Tensor:
        ctx.inside = inside  # in a tuple, where autograd does not see it: backward would run through it and free it
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        output, cut, keep = ctx.inside
        (gradient,) = gradients
        keep().append((output, gradient))
        if not cut.requires_grad:
            return (None,) * 4
        (found,) = torch.autograd.grad(output, cut, gradient, retain_graph=True)
        return found, None, None, None

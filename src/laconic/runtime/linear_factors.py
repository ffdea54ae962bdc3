"""The factors of a linear layer's gradient, its inputs and the gradients of its outputs, for compressors that use them.

Only public hooks are used. A pair of matrices is recorded while backward passes the layer, before the gradient itself
is ready; it is kept until it is taken, so that passes whose gradients are accumulated belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from laconic.runtime.autograd_hooks import OwnHook


class LinearFactors:
    """The linear layers of one model, by their weights' names; weights that other modules use too are left out."""

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        named = {id(p): name for name, p in model.named_parameters()}
        linear = [module for module in model.modules() if type(module) is nn.Linear]
        self._layers = {named[id(layer.weight)]: layer for layer in linear if uses[id(layer.weight)] == 1}
        self._hooks: dict[str, RemovableHandle] = {}
        self._recorded: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def record(self, names: Iterable[str]) -> None:
        """Record the factors of these weights from now on, where they belong to linear layers, and of no others."""
        wanted = self._layers.keys() & set(names)
        for name in self._hooks.keys() - wanted:
            self._hooks.pop(name).remove()
            self._recorded.pop(name, None)
        for name in wanted - self._hooks.keys():
            hook = OwnHook(partial(self._on_forward, name))
            self._hooks[name] = self._layers[name].register_forward_hook(hook)

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return inputs and output gradients, one row per sample, since they were last taken; None where they are not
        recorded."""
        if name not in self._hooks:
            return None
        layer, pairs = self._layers[name], self._recorded.pop(name, [])
        empty = [(layer.weight.new_zeros(0, layer.in_features), layer.weight.new_zeros(0, layer.out_features))]
        inputs, gradients = zip(*(pairs or empty), strict=True)
        return torch.cat(inputs), torch.cat(gradients)

    def release(self) -> None:
        self.record(())

    def _on_forward(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs of a forward pass until the gradient of its output is known."""
        usable = bool(inputs) and isinstance(output, Tensor) and output.requires_grad
        if usable and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            output.register_hook(partial(self._on_output_gradient, name, inputs[0].detach()))

    def _on_output_gradient(self, name: str, inputs: Tensor, gradient: Tensor) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1]), gradient.detach().reshape(-1, gradient.shape[-1])
        self._recorded.setdefault(name, []).append((rows[0].float(), rows[1].float()))

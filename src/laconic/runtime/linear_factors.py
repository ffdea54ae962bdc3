"""What a linear layer's gradient is made of: its inputs and the gradients of its outputs, for compressors that say so.

Public hooks only. A pair of matrices is noted while backward comes past the layer, before the gradient itself is there;
it is kept until somebody takes it, so that passes that are added up belong together.
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
    """The linear layers of one model, by their weights' names; weights that are used elsewhere too are left alone."""

    def __init__(self, model: nn.Module) -> None:
        uses = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
        named = {id(p): name for name, p in model.named_parameters()}
        linear = [module for module in model.modules() if type(module) is nn.Linear]
        self._layers = {named[id(layer.weight)]: layer for layer in linear if uses[id(layer.weight)] == 1}
        self._listening: dict[str, RemovableHandle] = {}
        self._noted: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def listen(self, names: Iterable[str]) -> None:
        """To these from now on, where they are linear layers' weights, and to no others."""
        wanted = self._layers.keys() & set(names)
        for name in self._listening.keys() - wanted:
            self._listening.pop(name).remove()
            self._noted.pop(name, None)
        for name in wanted - self._listening.keys():
            hook = OwnHook(partial(self._passed, name))
            self._listening[name] = self._layers[name].register_forward_hook(hook)

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Inputs and output gradients, a row for each sample, since they were last taken; None: nobody listens."""
        if name not in self._listening:
            return None
        layer, pairs = self._layers[name], self._noted.pop(name, [])
        empty = [(layer.weight.new_zeros(0, layer.in_features), layer.weight.new_zeros(0, layer.out_features))]
        inputs, gradients = zip(*(pairs or empty), strict=True)
        return torch.cat(inputs), torch.cat(gradients)

    def release(self) -> None:
        self.listen(())

    def _passed(self, name: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """A forward pass: its inputs are known, its output's gradient will come."""
        seen = bool(inputs) and isinstance(output, Tensor) and output.requires_grad
        if seen and not torch.compiler.is_compiling() and torch.is_grad_enabled():
            output.register_hook(partial(self._note, name, inputs[0].detach()))

    def _note(self, name: str, inputs: Tensor, gradient: Tensor) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1]), gradient.detach().reshape(-1, gradient.shape[-1])
        self._noted.setdefault(name, []).append((rows[0].float(), rows[1].float()))

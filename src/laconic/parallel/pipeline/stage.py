"""A stage on a device: passes of microbatches, what is kept between them, gradients and versions of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.func import functional_call


@dataclass
class _Pass:
    """What a stage keeps of a microbatch between its passes."""

    input: Tensor
    share: float
    scale: float
    target: Any
    weights: dict[str, Tensor]
    random: Tensor | None = None  # the state of the generator, where the forward pass is repeated
    output: Tensor | None = None
    rest: Any = None  # what the gradient of the weights starts from


class Stage:
    """A stage of a model on one device.

    - `module`: its layers.
    - `loss`: for the last stage, the loss of a microbatch's outputs and targets, a mean over samples.
    - `stashes`: whether backward passes use the weights of their forward passes although weights were updated between.
    - `in_order`: whether gradients are summed in the order of microbatches rather than in that of the passes, so that
      the sums of different schedules have the same bits; this keeps them all until the update.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Any], Tensor] | None = None,
        stashes: bool = False,
        in_order: bool = False,
    ) -> None:
        self.module, self.loss, self.stashes, self.in_order = module, loss, stashes, in_order
        self.losses: dict[int, Tensor] = {}
        self._passes: dict[int, _Pass] = {}
        self._gradients: dict[int, dict[str, Tensor]] = {}
        self._newest: dict[str, Tensor] | None = None

    @property
    def is_last(self) -> bool:
        """Whether this is the last stage."""
        return self.loss is not None

    def forward(self, microbatch: int, input: Tensor, target: Any, share: float, scale: float, again: bool) -> Tensor:
        """Pass a microbatch forward and return the output.

        - `share`: the microbatch's share of the batch, by samples.
        - `scale`: what the loss is multiplied by before gradients are computed.
        - `again`: whether the pass is repeated before the backward pass, so that only the input is kept.
        """
        x = input.detach()
        if x.is_floating_point():
            x.requires_grad_()
        kept = self._passes[microbatch] = _Pass(x, share, scale, target, self._weights())
        if not again:
            return self._compute(microbatch, kept)
        kept.random = torch.get_rng_state()
        with torch.no_grad():
            output = self._compute(microbatch, kept)
        kept.output = None
        return output

    def recompute(self, microbatch: int) -> None:
        """Pass a microbatch forward again, with the same random numbers."""
        kept = self._passes[microbatch]
        assert kept.random is not None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(kept.random)
            self._compute(microbatch, kept)

    def _compute(self, microbatch: int, kept: _Pass) -> Tensor:
        output: Tensor = (
            functional_call(self.module, kept.weights, (kept.input,)) if kept.weights else self.module(kept.input)
        )
        if self.loss is not None:
            loss = self.loss(output, kept.target)
            self.losses[microbatch] = loss.detach() * kept.share
            kept.output = loss * kept.scale
            return output
        kept.output = output
        return output

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Pass a microbatch backward and return the gradient of the input, where it has one."""
        kept = self._passes.pop(microbatch)
        assert kept.output is not None
        named = self._trained(kept)
        inputs = [kept.input] if kept.input.requires_grad else []
        found = torch.autograd.grad(kept.output, [*inputs, *named.values()], gradient, allow_unused=True)
        self._add(microbatch, dict(zip(named, found[len(inputs) :], strict=True)))
        return found[0] if inputs else None

    def input_gradient(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """Compute the gradient of a microbatch's input, and leave that of the weights for later."""
        kept = self._passes[microbatch]
        assert kept.output is not None
        if not kept.input.requires_grad:
            kept.rest = gradient
            return None
        gradients = [gradient] if gradient is not None else None
        named = self._trained(kept)
        found, kept.rest = stage_backward_input([kept.output], gradients, [kept.input], iter(named.values()))  # type: ignore[arg-type]
        return found[0]

    def weight_gradient(self, microbatch: int) -> None:
        """Compute the gradient of the weights that `input_gradient` has left."""
        kept = self._passes[microbatch]
        if not kept.input.requires_grad:
            self.backward(microbatch, kept.rest)
            return
        del self._passes[microbatch]
        named = self._trained(kept)
        before = {name: weight.grad for name, weight in named.items()}
        for weight in named.values():
            weight.grad = None
        stage_backward_weight(iter(named.values()), kept.rest)  # type: ignore[arg-type]
        found = {name: weight.grad for name, weight in named.items()}
        for name, weight in named.items():
            weight.grad = before[name]
        self._add(microbatch, found)

    def _weights(self) -> dict[str, Tensor]:
        """Return the newest version of the weights, where versions are kept; passes between two updates share it."""
        if not self.stashes:
            return {}
        if self._newest is None:
            self._newest = {
                name: weight.detach().clone().requires_grad_(weight.requires_grad)
                for name, weight in self.module.named_parameters()
            }
        return self._newest

    def _trained(self, kept: _Pass) -> dict[str, Tensor]:
        named = kept.weights or dict(self.module.named_parameters())
        return {name: weight for name, weight in named.items() if weight.requires_grad}

    def _add(self, microbatch: int, gradients: dict[str, Tensor | None]) -> None:
        found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        if self.in_order:
            self._gradients[microbatch] = found
        else:
            self._accumulate(found)

    def _accumulate(self, gradients: dict[str, Tensor]) -> None:
        weights = dict(self.module.named_parameters())
        for name, gradient in gradients.items():
            weight = weights[name]
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)

    def collect(self, scale: float) -> None:
        """Complete the sums of gradients before an update and scale them; passes that follow it use new weights."""
        for microbatch in sorted(self._gradients):
            self._accumulate(self._gradients[microbatch])
        self._gradients.clear()
        for weight in self.module.parameters():
            if weight.grad is not None and scale != 1.0:
                weight.grad.mul_(scale)
        self._newest = None

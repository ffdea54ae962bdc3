"""Split training: workers hold the bottom of a model, a server its top, and activations and gradients cross the cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


class SplitTraining:
    """Workers with copies of a bottom, and a server with one top, which learn by plain SGD.

    Nothing but activations, labels and gradients of activations crosses the cut, and parameters of bottoms when they
    are averaged.

    - `bottom`, `top`: the two parts of the model; the bottom is copied for each worker.
    - `loss`: the mean loss of the top's outputs and labels.
    """

    def __init__(self, bottom: nn.Module, top: nn.Module, workers: int, loss: Loss) -> None:
        self.bottoms, self.top, self._loss = [copy.deepcopy(bottom) for _ in range(workers)], top, loss

    @property
    def bottom_bytes(self) -> int:
        """What a bottom takes, with its buffers."""
        return sum(x.nbytes for x in _learned(self.bottoms[0]))

    def activation_bytes(self, inputs: Tensor) -> int:
        """Return what the activations of these samples take."""
        with torch.no_grad():
            found: Tensor = copy.deepcopy(self.bottoms[0])(inputs)
        return found.nbytes

    def iterate(
        self, inputs: Sequence[Tensor], labels: Sequence[Tensor], rates: Sequence[float], top_rate: float
    ) -> list[tuple[int, int]]:
        """Let every worker and the server make a step, and return the bytes that each worker has sent and received.

        The top learns from the mean loss over all samples; a bottom from that over its own worker's.

        - `rates`: the learning rates of the workers' bottoms.
        - `top_rate`: that of the top.
        """
        samples = sum(len(x) for x in inputs)
        activations = [bottom(x) for bottom, x in zip(self.bottoms, inputs, strict=True)]
        arrived = [a.detach().clone().requires_grad_() for a in activations]
        weights = [len(x) / samples for x in inputs]
        losses = [self._loss(self.top(a), y) for a, y in zip(arrived, labels, strict=True)]
        total = torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum()
        parameters = list(self.top.parameters())
        found = torch.autograd.grad(total, [*parameters, *arrived])
        _descend(parameters, found[: len(parameters)], top_rate)
        counted = []
        for bottom, own, weight, gradient, rate in zip(
            self.bottoms, activations, weights, found[len(parameters) :], rates, strict=True
        ):
            returned = gradient / weight
            _descend(list(bottom.parameters()), torch.autograd.grad(own, list(bottom.parameters()), returned), rate)
            counted.append((own.nbytes, returned.nbytes))
        return counted

    @torch.no_grad()
    def average(self, weights: Sequence[float]) -> None:
        """Replace all bottoms by their mean, by these weights, which sum to one."""
        for column in zip(*map(_learned, self.bottoms), strict=True):
            mean = sum(w * x for w, x in zip(weights, column, strict=True))
            for x in column:
                x.copy_(mean)

    def flat(self, worker: int) -> Tensor:
        """Return the parameters of a worker's bottom as a vector."""
        return torch.cat([p.detach().flatten() for p in self.bottoms[worker].parameters()])

    @property
    def model(self) -> nn.Module:
        """The whole model, with the first worker's bottom: after an averaging, with everybody's."""
        return nn.Sequential(self.bottoms[0], self.top)


def _learned(module: nn.Module) -> list[Tensor]:
    """Return what is averaged of a module: its parameters, and its buffers that are no whole numbers."""
    return [*module.parameters(), *(x for x in module.buffers() if x.is_floating_point())]


@torch.no_grad()
def _descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rate: float) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=rate)

"""Gradients that a step does without: switched off before its forward pass, so that backward never computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn


class SkippedGradients:
    """How much the coming step's gradients count, and which parameters are switched off for it.

    A parameter that does not require its gradient while the graph is recorded costs no weight-gradient product, and
    the gradients of activations go on through its layer. What the user has frozen stays frozen.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._off: list[nn.Parameter] = []
        self.weights: Mapping[int, float] = {}
        self.skipped: frozenset[int] = frozenset()

    def decide(self, weights: Mapping[int, float]) -> None:
        """By parameter, where it is not one: what its gradient is multiplied by. Zero: it is skipped."""
        self.release()
        self.weights = weights
        self.skipped = frozenset(i for i, weight in weights.items() if weight == 0)
        self._off = [p for i, p in enumerate(self._parameters) if i in self.skipped and p.requires_grad]
        for parameter in self._off:
            parameter.requires_grad_(False)

    def release(self) -> None:
        """Nothing is skipped any more."""
        for parameter in self._off:
            parameter.requires_grad_(True)
        self._off, self.weights, self.skipped = [], {}, frozenset()

    def some_are_needed(self, trainable: Sequence[nn.Parameter]) -> bool:
        """Whether anybody may have a gradient in this step, though nothing came on this worker."""
        return any(p.requires_grad for i, p in enumerate(trainable) if i not in self.skipped)

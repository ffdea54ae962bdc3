"""Gradients that a step does without: they are switched off before the forward pass, so that backward never computes
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn


class SkippedGradients:
    """The weights of the coming step's gradients, and the parameters that are switched off for it.

    A parameter that does not require its gradient while the graph is recorded costs no weight-gradient product, and the
    gradients of activations still flow through its layer. What the user has frozen stays frozen.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._off: list[nn.Parameter] = []
        self.weights: Mapping[int, float] = {}
        self.skipped: frozenset[int] = frozenset()

    def decide(self, weights: Mapping[int, float]) -> None:
        """Set the factor of each parameter's gradient, where it is not one; a gradient of factor zero is skipped."""
        if not weights and not self.weights:
            return
        self.release()
        self.weights = weights
        self.skipped = frozenset(i for i, weight in weights.items() if weight == 0)
        self._off = [self._parameters[i] for i in sorted(self.skipped) if self._parameters[i].requires_grad]
        for parameter in self._off:
            parameter.requires_grad_(False)

    def release(self) -> None:
        """Skip nothing any more."""
        for parameter in self._off:
            parameter.requires_grad_(True)
        self._off, self.weights, self.skipped = [], {}, frozenset()

    def some_are_needed(self, trainable: Sequence[nn.Parameter]) -> bool:
        """Return whether any worker may have a gradient in this step, though this worker has none."""
        return any(p.requires_grad for i, p in enumerate(trainable) if i not in self.skipped)

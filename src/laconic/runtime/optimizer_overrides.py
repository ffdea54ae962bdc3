"""Settings of the user's optimizer that a compressor takes over, as DGC does with momentum.

The one hook from a compressor into the optimizer: while it governs, such a setting is zero there and known here, so
that nothing is applied twice; a scheduler that sets it again is heard. When it no longer governs, they are given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.optim import Optimizer


class OptimizerOverrides:
    """What is taken from one optimizer."""

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._optimizer = optimizer
        self._values: list[dict[str, float]] = []

    def take(self, names: Iterable[str]) -> None:
        """Take these where the optimizer has them, and give all others back."""
        self.give_back()
        wanted = sorted(set(names))
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        self._values = [{name: 0.0 for name in wanted if name in group} for group in groups]
        self._look()

    def now(self) -> Mapping[str, float]:
        """Their values, of the first group."""
        self._look()
        return self._values[0] if self._values else {}

    def give_back(self) -> None:
        self._look()
        if self._optimizer is not None:
            for group, values in zip(self._optimizer.param_groups, self._values, strict=False):
                group.update(values)
        self._values = []

    def _look(self) -> None:
        """Whatever has been set there is taken here."""
        if self._optimizer is None:
            return
        for group, values in zip(self._optimizer.param_groups, self._values, strict=False):
            for name in values:
                if group[name]:
                    values[name], group[name] = float(group[name]), 0.0

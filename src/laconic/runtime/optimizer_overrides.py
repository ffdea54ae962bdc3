"""Settings of the user's optimizer that a compressor takes over, as DGC does with momentum.

This is the one way for a compressor to act on the optimizer: while the compressor governs, such a setting is zero in
the optimizer and known here, so that it is not applied twice; a value that a scheduler sets meanwhile is picked up.
When the compressor no longer governs, the settings are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch.optim import Optimizer


class OptimizerOverrides:
    """The settings of one optimizer that are overridden with zero, and their real values."""

    def __init__(self, optimizer: Optimizer | None) -> None:
        self._optimizer = optimizer
        self._overridden: list[dict[str, float]] = []

    def override(self, names: Iterable[str]) -> None:
        """Override these settings where the optimizer has them, and restore all others."""
        self.restore()
        wanted = sorted(set(names))
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        self._overridden = [{name: 0.0 for name in wanted if name in group} for group in groups]
        self._refresh()

    def current_values(self) -> Mapping[str, float]:
        """Return the real values of the overridden settings, of the first parameter group."""
        self._refresh()
        return self._overridden[0] if self._overridden else {}

    def restore(self) -> None:
        """Write the real values back into the optimizer."""
        self._refresh()
        if self._optimizer is not None:
            for group, values in zip(self._optimizer.param_groups, self._overridden, strict=False):
                group.update(values)
        self._overridden = []

    def _refresh(self) -> None:
        """Pick up values that were set in the optimizer meanwhile, and set them to zero there."""
        if self._optimizer is None:
            return
        for group, values in zip(self._optimizer.param_groups, self._overridden, strict=False):
            for name in values:
                if group[name]:
                    values[name], group[name] = float(group[name]), 0.0

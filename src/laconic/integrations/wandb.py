"""Weights & Biases as a sink of `laconic.log`: `laconic.report_to(WandbSink(wandb.init(project="first")))`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class WandbSink:
    """Logs to a run. Curves are drawn over `laconic/step`, the optimizer's, so that a script may also log for itself.

    - `run`: what `wandb.init` returned, usually on rank 0 alone.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self._known: set[str] = set()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values in one call, as belonging to this step."""
        for name in values.keys() - self._known:
            self._run.define_metric(name, step_metric="laconic/step")
        self._known |= values.keys()
        self._run.log({**values, "laconic/step": step})

"""What would make a table worth nothing, refused before a run begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.rungs.run import Run, strategy_at

from laconic.errors import LaconicError
from laconic.frontier.methods import steps_outside
from laconic.planner.phases import phases_of
from laconic.strategy import Sentence, Strategy

ADAMS = ("adam", "adamw")


def refuse(run: Run) -> None:
    """Raise an error where a run would be no fair picture of its method."""
    strategy = strategy_at(run.method, run.steps)
    if outside := steps_outside(strategy, run.steps):
        raise LaconicError(
            f"the last {outside} of {run.steps} steps of `{run.trained}` belong to no whole period, so that their work "
            "would be lost or evaluated before workers meet: choose steps that are a multiple of the period"
        )
    first, _ = phases_of(strategy, run.steps)[0]
    if run.optimizer in ADAMS and remembers_errors_of_gradients(first):
        raise LaconicError(
            f"`{run.trained}` remembers errors of gradients from the first step on, and Adam divides them by variances "
            "that know nothing of them: begin dense, as in `bsp until step {10%}, then …`"
        )


def on_other_data(seed: int, data: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a seed's reports were trained on other data than these, so that losses would not compare."""
    return any(row.get("data", "") != data for row in rows if row["seed"] == seed and row["purpose"] != "rate")


def remembers_errors_of_gradients(strategy: Strategy) -> bool:
    """Return whether a strategy adds to gradients what earlier messages of them left out."""
    if not isinstance(strategy, Sentence):
        return any(map(remembers_errors_of_gradients, strategy.parts_within))
    remembers = any(word.name in ("error_feedback", "compensation", "loco") for word in strategy.compression)
    return remembers and strategy.sync.make().averages_gradients(0)

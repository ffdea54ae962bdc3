"""What would make a table worth nothing, refused before a run begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench.rungs.run import Run, strategy_at

from laconic.errors import LaconicError
from laconic.frontier.methods import phases_of, steps_outside
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


def refuse_other_data(run: Run, data: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise an error where a seed's other runs, with which this one would be paired, were trained on other data."""
    if run.purpose == "rate":
        return
    others = {row.get("data", "") for row in rows if row["seed"] == run.seed and row["purpose"] != "rate"} - {data}
    if others:
        raise LaconicError(
            f"runs of seed {run.seed} of the rung {run.rung} were trained on other data ({_named(others)}) than there "
            f"are here ({_named({data})}), so that losses of the two would not compare: remove those rows, or give the "
            "rung another seed"
        )


def _named(hashes: Iterable[str]) -> str:
    return ", ".join(sorted(one or "whose hash was not kept" for one in hashes))


def remembers_errors_of_gradients(strategy: Strategy) -> bool:
    """Return whether a strategy adds to gradients what earlier messages of them left out."""
    if not isinstance(strategy, Sentence):
        return any(map(remembers_errors_of_gradients, strategy.parts_within))
    remembers = any(word.name in ("error_feedback", "compensation", "loco") for word in strategy.compression)
    return remembers and strategy.sync.make().averages_gradients(0)

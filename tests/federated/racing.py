"""How soon a strategy reaches an accuracy, with the best of some learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterable

from laconic.federated.outcome import Step
from laconic.federated.population import Population
from laconic.federated.simulate import simulate
from laconic.federated.task import Task


class _Over(Exception):
    """A run need not go on."""


def seconds_to(
    target: float, task: Task, clients: Population, texts: Iterable[str], rates: Iterable[float], seed: int, most: int
) -> float:
    """Return the virtual seconds until the best of these strategies, with the best of these rates, has reached an
    accuracy; infinity where none does within so many steps. A run that has taken longer than the best so far is
    stopped: it cannot be better."""
    best = math.inf

    def look(step: Step) -> None:
        nonlocal best
        if step.scores["accuracy"] >= target:
            best = min(best, step.seconds)
        if step.seconds >= best:
            raise _Over

    for text in texts:
        for rate in rates:
            try:
                simulate(task, clients, text, most, rate=rate, seed=seed, evaluate_every=1, progress=look)
            except _Over:
                continue
    return best

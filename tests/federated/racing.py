"""How soon, or with how many bytes, a strategy reaches an accuracy, with the best of some learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from laconic.federated.outcome import Step
from laconic.federated.population import Population
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.federated.task import Task


class _Over(Exception):
    """A run need not go on."""


def seconds_to(
    target: float, task: Task, clients: Population, texts: Iterable[str], rates: Iterable[float], seed: int, most: int
) -> float:
    """Return the virtual seconds until the best of these strategies, with the best of these rates, has reached an
    accuracy; infinity where none does within so many steps."""
    return _least(lambda step: step.seconds, target, task, clients, texts, rates, seed, most)


def bytes_to(
    target: float,
    task: Task,
    clients: Population,
    texts: Iterable[str | FederatedStrategy],
    rates: Iterable[float],
    seed: int,
    most: int,
) -> float:
    """Return the bytes that all clients have sent and received by then. The first model is not counted: all begin with
    the same one."""
    first = len(clients) * 4 * sum(parameter.numel() for parameter in task.build(seed).parameters())
    return _least(lambda step: step.up_bytes + step.down_bytes - first, target, task, clients, texts, rates, seed, most)


def _least(
    cost: Callable[[Step], float],
    target: float,
    task: Task,
    clients: Population,
    texts: Iterable[str | FederatedStrategy],
    rates: Iterable[float],
    seed: int,
    most: int,
) -> float:
    """Return the least cost. A run that has cost more than the best so far is stopped: it cannot be better."""
    best = math.inf

    def look(step: Step) -> None:
        nonlocal best
        if step.scores["accuracy"] >= target:
            best = min(best, cost(step))
        if cost(step) >= best:
            raise _Over

    for text in texts:
        for rate in rates:
            try:
                simulate(task, clients, text, most, rate=rate, seed=seed, evaluate_every=1, progress=look)
            except _Over:
                continue
    return best

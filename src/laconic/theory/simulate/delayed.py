"""SGD that applies late gradients, on a known objective, many runs at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.theory.problems import Array, Objective, noisy_gradient
from laconic.theory.simulate.arrivals import Integers


@dataclass(frozen=True)
class State:
    """The state after a delivery: the parameters, the distance of the gradient's point, and whether it was applied."""

    x: Array
    distance: Array
    applied: NDArray[np.bool_]


def delayed_sgd(
    objective: Objective,
    start: Array,
    read: Integers,
    rate: float | Array,
    *,
    factors: Array | None = None,
    momentum: float | Array = 0.0,
    radius: float | None = None,
    runs: int = 1,
    seed: int = 0,
) -> Iterator[State]:
    """Yield the state after each delivery.

    `read` holds the version each gradient was computed at, for all runs (count) or each (runs, count); `factors` is
    what a delay-adaptive rule leaves of the rate, alike. `rate` and `momentum` may differ by run, as (runs, 1). With
    `radius` gradients from farther away are dropped (picky SGD).
    """
    generator = np.random.default_rng(seed)
    read = np.broadcast_to(read, (runs, read.shape[-1]))
    count = read.shape[1]
    share = np.ones((runs, count)) if factors is None else np.broadcast_to(factors, (runs, count))
    kept = int((np.arange(count) - read).max(initial=0)) + 1
    past = np.empty((kept, runs, start.shape[-1]))
    x = np.broadcast_to(start, (runs, start.shape[-1])).copy()
    velocity = np.zeros_like(x)
    every = np.arange(runs)
    for step in range(count):
        past[step % kept] = x
        point = past[read[:, step] % kept, every]
        gradient = noisy_gradient(objective, point, point.shape, generator)
        distance = np.linalg.norm(x - point, axis=1)
        applied = distance <= radius if radius is not None else np.ones(runs, dtype=bool)
        velocity = momentum * velocity - rate * (share[:, step] * applied)[:, None] * gradient
        x = x + velocity
        yield State(x, distance, applied)

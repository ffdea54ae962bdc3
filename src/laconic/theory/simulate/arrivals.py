"""The order in which workers that are always busy deliver gradients, and the delays that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def arrivals(
    speeds: Sequence[float],
    count: int,
    *,
    law: Literal["constant", "exponential"] = "exponential",
    runs: int = 1,
    seed: int = 0,
) -> Integers:
    """Return the workers in order of delivery, (runs, count); a worker starts its next gradient on delivery."""
    generator = np.random.default_rng(seed)
    mean = 1 / np.asarray(speeds, dtype=float)
    every = np.arange(runs)

    def durations(who: Integers) -> NDArray[np.float64]:
        return mean[who] * (generator.exponential(size=who.shape) if law == "exponential" else 1.0)

    done = durations(np.broadcast_to(np.arange(len(mean)), (runs, len(mean))))
    order = np.empty((runs, count), dtype=np.int64)
    for event in range(count):
        order[:, event] = who = done.argmin(axis=1)
        done[every, who] += durations(who)
    return order


def reads(order: Integers, workers: int) -> Integers:
    """Return the version at which each gradient was computed: the number of deliveries when its worker last read."""
    runs, count = order.shape
    version = np.zeros((runs, workers), dtype=np.int64)
    read = np.empty_like(order)
    every = np.arange(runs)
    for event in range(count):
        read[:, event] = version[every, order[:, event]]
        version[every, order[:, event]] = event + 1
    return read


def delays(read: Integers) -> Integers:
    """Return the number of updates between the reading of parameters and the use of each gradient."""
    return np.arange(read.shape[-1]) - read


def late_by(delay: Integers | int, count: int) -> Integers:
    """Return the versions read when gradients have the given delays, which are cut short at the start."""
    return np.maximum(0, np.arange(count) - np.asarray(delay, dtype=np.int64))

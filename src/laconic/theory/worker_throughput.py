"""Gradients per second of workers of different speeds, which turn iterations into time."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.theory.values import require


def asynchronous(speeds: Sequence[float]) -> float:
    """Return the gradients per second when no worker waits; `speeds` are each worker's gradients per second."""
    return sum(_checked(speeds))


def minibatch(speeds: Sequence[float]) -> float:
    """Return the gradients per second when all workers wait for the slowest."""
    return len(speeds) * min(_checked(speeds))


def _checked(speeds: Sequence[float]) -> Sequence[float]:
    require(len(speeds) > 0 and min(speeds) > 0, f"speeds={tuple(speeds)}: give one number above 0 per worker")
    return speeds

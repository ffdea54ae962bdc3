"""Updates per second of workers that differ: what turns iterations into time."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.theory.values import require


def asynchronous(speeds: Sequence[float]) -> float:
    """Gradients per second when nobody waits: every worker at its own pace (`speeds`: its gradients per second)."""
    return sum(_checked(speeds))


def minibatch(speeds: Sequence[float]) -> float:
    """Gradients per second when everyone waits for the slowest."""
    return len(speeds) * min(_checked(speeds))


def _checked(speeds: Sequence[float]) -> Sequence[float]:
    require(len(speeds) > 0 and min(speeds) > 0, f"speeds={tuple(speeds)}: give one number above 0 per worker")
    return speeds

"""Asynchronous SGD by concurrency: what counts is the number of gradients in flight, not the largest delay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from laconic.registry import technique
from laconic.theory import worker_throughput as paces
from laconic.theory.delayed.orders import iterations
from laconic.theory.values import A_BOUND, Bound, Problem, require

Rule = Literal["adaptive", "constant"]


@technique("theory_koloskova_2022", axis="theory", paper="Koloskova, Stich, Jaggi, NeurIPS 2022", why_no_word=A_BOUND)
def bound(problem: Problem, *, epsilon: float, tau_max: float, tau_avg: float, rule: Rule = "adaptive") -> Bound:
    """Bound the iterations of asynchronous SGD: by sqrt(tau_max tau_avg) at a constant rate, by tau_avg if adaptive.

    With N workers always busy tau_avg is at most N - 1. Delays count from 1 inside (a punctual gradient is a step too).
    Workers' data are alike. Constants are 1.
    """
    require(
        0 <= tau_avg <= tau_max, f"tau_avg={tau_avg:g} must lie between 0 and tau_max={tau_max:g}; swap or correct them"
    )
    delay = effective(tau_max, tau_avg, rule)
    return iterations(problem, epsilon, delay, "non-convex", rate=1 / (4 * problem.L * delay))


def effective(tau_max: float, tau_avg: float, rule: Rule) -> float:
    """Return the delay that enters the bound, counted from 1."""
    return 1 + tau_avg if rule == "adaptive" else math.sqrt((1 + tau_max) * (1 + tau_avg))


def seconds(problem: Problem, *, epsilon: float, speeds: Sequence[float]) -> tuple[float, float]:
    """Return the seconds to epsilon of the adaptive rule and of minibatch SGD; `speeds` are gradients per second."""
    busy = iterations(problem, epsilon, len(speeds), "non-convex").total
    return busy / paces.asynchronous(speeds), busy / paces.minibatch(speeds)

"""The Gittins index of a job whose service is known in distribution only."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def gittins_index(services: Sequence[float], attained: float, quantum: float = math.inf) -> float:
    """Return the largest chance, for the service that it takes, that a job is done soon: the supremum over D, at most
    the quantum, of P(S - a <= D | S > a) / E[min(S - a, D) | S > a]. It is infinite where no job of the history had as
    much service: such a job would be done at any moment.

    - `services`: what jobs of the history took in all, in ascending order.
    - `attained`: what this job has had so far.
    - `quantum`: the service for which it would be let run.
    """
    left = [service - attained for service in services[bisect_right(services, attained) :]]
    if not left:
        return math.inf
    best, many = 0.0, len(left)
    for i, (span, total) in enumerate(zip(left, accumulate(left), strict=True)):
        if span > quantum:
            break
        best = max(best, (i + 1) / (total + span * (many - i - 1)))
    return best

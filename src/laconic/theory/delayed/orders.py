"""The common form of all bounds on late gradients: a noise term and a delay term."""

from __future__ import annotations

import math
from typing import Literal

from laconic.theory.values import Bound, Problem, counts

Curvature = Literal["non-convex", "convex", "strongly convex"]

CONSTANTS = ("one constant per term",)


def iterations(
    problem: Problem, epsilon: float, delay: float, curvature: Curvature, rate: float | None = None
) -> Bound:
    """Return the gradients needed until |grad f|^2 <= epsilon (non-convex) or f - f* <= epsilon (else), constants 1.

    `delay` counts from 1, which is a gradient that is not late.
    """
    counts(epsilon=epsilon, delay=delay)
    L, sigma2 = problem.L, problem.sigma2
    if curvature == "non-convex":
        scale = L * problem.known("F0")
        terms = {"noise": scale * sigma2 / epsilon**2, "delay": scale * delay / epsilon}
    elif curvature == "convex":
        distance2 = problem.known("R0") ** 2
        terms = {"noise": distance2 * sigma2 / epsilon**2, "delay": L * distance2 * delay / epsilon}
    else:
        halvings = math.log(max(math.e, problem.known("F0") / epsilon))
        terms = {"noise": sigma2 / (problem.known("mu") * epsilon), "delay": problem.kappa * delay * halvings}
    return Bound("iterations", terms, rate=rate, unknown=CONSTANTS)

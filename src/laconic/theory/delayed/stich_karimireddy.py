"""Delayed SGD, analysed as SGD with error feedback."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.delayed.orders import Curvature, iterations
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require


@technique(
    "theory_stich_karimireddy_2020", axis="theory", paper="Stich and Karimireddy, JMLR 21, 2020", why_no_word=A_BOUND
)
def bound(problem: Problem, *, epsilon: float, tau_max: float, curvature: Curvature = "non-convex") -> Bound:
    """Bound the iterations of SGD with delays of at most tau: they add a term of lower order, linear in tau.

    A gradient's own step counts too (tau + 1 + M), so that tau = 0 is plain SGD. Compression with contraction delta is
    covered with 1/delta in place of tau. Numerical constants are indicative (1 here).
    """
    return iterations(problem, epsilon, 1 + tau_max + problem.M, curvature, rate=largest_rate(problem, tau_max))


def largest_rate(problem: Problem, tau_max: float) -> float:
    """Return 1 / (10 L (1 + tau + M)), in which the 1 counts the gradient's own step."""
    require(tau_max >= 0, f"tau_max={tau_max:g} cannot be negative")
    return 1 / (10 * problem.L * (1 + tau_max + problem.M))


def free_delay(problem: Problem, epsilon: float, curvature: Curvature = "non-convex") -> float:
    """Return the delay at which both terms are equal, up to which it is free: sigma2 / epsilon up to constants."""
    counts(epsilon=epsilon)
    terms = bound(problem, epsilon=epsilon, tau_max=0, curvature=curvature).terms
    return max(0.0, (1 + problem.M) * (terms["noise"] / terms["delay"] - 1)) if terms["delay"] else math.inf

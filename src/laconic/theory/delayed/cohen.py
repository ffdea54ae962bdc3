"""Picky SGD: gradients computed at points too far away are dropped."""

from __future__ import annotations

from laconic.registry import technique
from laconic.theory.delayed.orders import CONSTANTS, iterations
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require


@technique(
    "theory_cohen_2021", axis="theory", paper="Cohen, Daniely, Drori, Koren, Schain, NeurIPS 2021", why_no_word=A_BOUND
)
def bound(problem: Problem, *, epsilon: float, tau_avg: float, convex: bool = False) -> Bound:
    """Bound the iterations of picky SGD until the gradient's norm (not squared) is epsilon, by the average delay.

    Smooth non-convex, or `convex` with epsilon on f - f*; delays need not be known. Dropped gradients count too.
    """
    counts(epsilon=epsilon)
    require(tau_avg >= 0, f"tau_avg={tau_avg:g} cannot be negative")
    if convex:
        return iterations(problem, epsilon, 1 + tau_avg, "convex")
    scale = problem.L * problem.known("F0")
    terms = {"noise": scale * problem.sigma2 / epsilon**4, "delay": scale * (1 + tau_avg) / epsilon**2}
    return Bound("iterations", terms, rate=rate(problem, epsilon), unknown=(*CONSTANTS, "c of the rate"))


def radius(problem: Problem, epsilon: float) -> float:
    """Return epsilon / (2 beta), with smoothness beta: the distance up to which a gradient is applied."""
    counts(epsilon=epsilon)
    return epsilon / (2 * problem.L)


def rate(problem: Problem, epsilon: float, c: float = 1.0) -> float:
    """Return the rate min(1 / (4 beta), epsilon^2 / (c beta sigma2)), with smoothness beta; c is not established."""
    counts(epsilon=epsilon, c=c)
    high = 1 / (4 * problem.L)
    return min(high, epsilon**2 / (c * problem.L * problem.sigma2)) if problem.sigma2 else high

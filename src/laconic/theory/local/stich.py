"""Local SGD on strongly convex objectives with bounded gradients."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, largest, require, smallest


@technique("theory_stich_2019", axis="theory", paper="Stich, ICLR 2019", why_no_word=A_BOUND)
def bound(
    problem: Problem, *, workers: int, period: int, iterations: int, offset: float | None = None, batch: int = 1
) -> Bound:
    """Bound the error of local SGD's weighted average at rates 4 / (mu (a + t)): linear speed-up, O(sqrt(N T)) rounds.

    The output weights step t by (a + t)^2; `offset` is a > max(16 kappa, H). E|g|^2 <= G^2 is assumed.
    """
    N, H, T = workers, period, iterations
    counts(workers=N, period=H, iterations=T, batch=batch)
    L, mu, G2 = problem.L, problem.known("mu"), problem.known("G2")
    sigma2 = problem.sigma2 / batch
    least = max(16 * problem.kappa, H)
    a = least + 1 if offset is None else offset
    require(a > least, f"offset={a:g} must exceed max(16 kappa, H) = {least:g}")
    S = weight(a, T)
    terms = {
        "start": mu * a**3 / (2 * S) * problem.known("R0") ** 2,
        "noise": 4 * T * (T + 2 * a) / (mu * N * S) * sigma2,
        "drift": 256 * T / (mu**2 * S) * G2 * H**2 * L,
    }
    conditions = ("a > max(16 kappa, H)", "E|g|^2 <= G^2 (given)")
    return Bound("f - f*", terms, math.ceil(T / H), H, 4 / (mu * a), conditions)


def weight(offset: float, iterations: int) -> float:
    """Return S_T, the sum of (a + t)^2 over t < T."""
    a, T = offset, iterations
    return T * a**2 + a * T * (T - 1) + (T - 1) * T * (2 * T - 1) / 6


def largest_period(problem: Problem, *, workers: int, iterations: int) -> int:
    """Return the largest H whose drift stays below the noise: of the order of sqrt(T / N)."""

    def drifts_less(H: int) -> bool:
        terms = bound(problem, workers=workers, period=H, iterations=iterations).terms
        return terms["drift"] <= terms["noise"]

    return largest(drifts_less, iterations)


def iterations_to(epsilon: float, problem: Problem, *, workers: int, period: int) -> int:
    """Return the smallest T that brings the bound to epsilon at this period."""
    counts(epsilon=epsilon)
    return smallest(
        lambda T: bound(problem, workers=workers, period=period, iterations=T).total <= epsilon, "number of iterations"
    )


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N^(1/2) T^(1/2)."""
    return math.sqrt(workers * iterations)

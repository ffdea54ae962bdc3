"""Parallel restarted SGD on non-convex objectives with bounded gradients."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require, smallest


@technique("theory_yu_2019", axis="theory", paper="Yu, Yang, Zhu, AAAI 2019", why_no_word=A_BOUND)
def bound(problem: Problem, *, workers: int, period: int, iterations: int, rate: float) -> Bound:
    """Bound the mean squared gradient of model averaging every I steps: linear speed-up at O(N^(3/4) T^(3/4)) rounds.

    Workers' data may differ; E|g|^2 <= G^2 is assumed. The survey denies the speed-up that the paper's corollary shows;
    the paper is followed.
    """
    N, I, T, g = workers, period, iterations, rate  # noqa: E741
    counts(workers=N, period=I, iterations=T, rate=g)
    L = problem.L
    require(g <= 1 / L, f"rate={g:g} exceeds 1/L = {1 / L:g}; take a smaller one or more iterations")
    terms = {
        "start": 2 * problem.known("F0") / (g * T),
        "drift": 4 * g**2 * I**2 * problem.known("G2") * L**2,
        "noise": L * g * problem.sigma2 / N,
    }
    return Bound("|grad f|^2", terms, math.ceil(T / I), I, g, ("g <= 1/L", "E|g|^2 <= G^2 (given)"))


def recommended(problem: Problem, *, workers: int, iterations: int) -> tuple[float, int]:
    """Return the rate and period that make every term O(1 / sqrt(N T))."""
    rate = math.sqrt(workers / iterations) / problem.L
    period = math.floor(iterations**0.25 / workers**0.75 * (1 + 1e-12))  # a whole number must not fall below itself
    return rate, max(1, period)


def iterations_to(epsilon: float, problem: Problem, *, workers: int) -> int:
    """Return the smallest T that brings the bound to epsilon with the recommended rate and period."""
    counts(epsilon=epsilon)

    def reached(T: int) -> bool:
        if workers > T:  # the recommended rate would exceed 1/L
            return False
        rate, period = recommended(problem, workers=workers, iterations=T)
        return bound(problem, workers=workers, period=period, iterations=T, rate=rate).total <= epsilon

    return smallest(reached, "number of iterations")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N^(3/4) T^(3/4), and never more than T."""
    return min(float(iterations), math.pow(workers * iterations, 0.75))

"""K-AVG on smooth non-convex objectives."""

from __future__ import annotations

import math

import numpy as np

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require, smallest


@technique("theory_zhou_cong_2018", axis="theory", paper="Zhou and Cong, IJCAI 2018", why_no_word=A_BOUND)
def bound(
    problem: Problem, *, workers: int, period: int, averagings: int, rate: float, batch: int = 1, slack: float = 0.5
) -> Bound:
    """Bound the mean squared gradient of K-AVG: K local steps, then an average, n times, at a constant rate.

    `slack` is the theorem's constant 0 < d < 1. Constants are quoted from memory (the survey gives orders alone); as
    the condition quoted would allow any rate at K = 1, 1 - d >= L^2 g^2 is asked for too.
    """
    K, n, P, g, d = period, averagings, workers, rate, slack
    counts(workers=P, period=K, averagings=n, rate=g, batch=batch)
    require(0 < d < 1, f"slack={d:g} must lie between 0 and 1")
    L, F1, M = problem.L, problem.known("F0"), problem.sigma2
    high = largest_rate(problem, period=K, slack=d)
    require(
        g <= high,
        f"rate={g:g} with period={K} breaks 1 - d >= L^2 g^2 (K(K-1)/2 - 1 - d) + L g K or 1 - d >= L^2 g^2 for "
        f"d={d:g}; take a rate of at most {high:.3g} or a shorter period",
    )
    lead = L * K * g * M / (batch * (K - 1 + d))
    terms = {
        "start": 2 * F1 / (n * (K - 1 + d) * g),
        "noise": lead * K / P,
        "drift": lead * L * (2 * K - 1) * (K - 1) * g / 6,
    }
    return Bound(
        "|grad f|^2", terms, rounds=n, period=K, rate=g, conditions=("1 - d >= L^2 g^2 (…) + L g K", "1 - d >= L^2 g^2")
    )


def largest_rate(problem: Problem, *, period: int, slack: float = 0.5) -> float:
    """Return the largest rate the conditions allow; the first is a quadratic in y = L g."""
    square, room = period * (period - 1) / 2 - 1 - slack, 1 - slack
    inside = period**2 + 4 * square * room
    root = 2 * room / (period + math.sqrt(inside)) if inside >= 0 else math.inf
    return min(root, math.sqrt(room)) / problem.L


def best_rate(
    problem: Problem, *, workers: int, period: int, averagings: int, batch: int = 1, slack: float = 0.5
) -> float:
    """Return the allowed rate with the smallest bound."""
    high = largest_rate(problem, period=period, slack=slack)
    once = bound(problem, workers=workers, period=period, averagings=averagings, rate=high, batch=batch, slack=slack)
    share = np.geomspace(1e-6, 1, 2000)
    totals = once.terms["start"] / share + once.terms["noise"] * share + once.terms["drift"] * share**2
    return float(high * share[np.argmin(totals)])


def averagings_to(
    epsilon: float, problem: Problem, *, workers: int, period: int, rate: float, batch: int = 1, slack: float = 0.5
) -> int:
    """Return the number of averagings that bring the bound to epsilon at this rate."""
    counts(epsilon=epsilon)
    once = bound(problem, workers=workers, period=period, averagings=1, rate=rate, batch=batch, slack=slack)
    floor = once.total - once.terms["start"]
    require(floor < epsilon, f"at rate={rate:g} noise alone keeps the bound at {floor:g}; take a smaller rate")
    return max(1, math.ceil(once.terms["start"] / (epsilon - floor)))


def best_period(
    problem: Problem, *, workers: int, steps: int, rate: float, batch: int = 1, slack: float = 0.5, longest: int = 64
) -> int:
    """Return the K with the smallest bound for a budget of n K steps at one rate, among those the condition allows."""
    allowed = [K for K in range(1, min(longest, steps) + 1) if rate <= largest_rate(problem, period=K, slack=slack)]
    require(bool(allowed), f"rate={rate:g} is too large for any period; take a smaller one")

    def total(K: int) -> float:
        once = bound(problem, workers=workers, period=K, averagings=1, rate=rate, batch=batch, slack=slack)
        return once.total - once.terms["start"] * (1 - K / steps)

    return min(allowed, key=total)


def iterations_to(epsilon: float, problem: Problem, *, workers: int, period: int) -> int:
    """Return the smallest T = n K that brings the bound to epsilon at the best rate for it."""
    counts(epsilon=epsilon)

    def reached(n: int) -> bool:
        rate = best_rate(problem, workers=workers, period=period, averagings=n)
        return bound(problem, workers=workers, period=period, averagings=n, rate=rate).total <= epsilon

    return period * smallest(reached, "number of averagings")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of T (a constant period)."""
    return float(iterations)

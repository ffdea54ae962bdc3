"""Cooperative SGD: one bound for BSP, local, elastic and decentralised SGD."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, largest, require, smallest


@technique("cooperative_sgd_bound", axis="theory", paper="Wang and Joshi, JMLR 22, 2021", why_no_word=A_BOUND)
def bound(
    problem: Problem,
    *,
    workers: int,
    period: int,
    iterations: int,
    rate: float,
    mixing: float = 0.0,
    auxiliary: int = 0,
) -> Bound:
    """Bound the mean squared gradient of A(tau, W, v): workers mix by W every tau steps, with v untrained models.

    `mixing` is zeta(W), 0 for plain averaging; `rate` is the effective one, m eta / (m + v). Workers' data are alike;
    the version for data that differ is not implemented.
    """
    m, tau, K, eta, v = workers, period, iterations, rate, auxiliary
    counts(workers=m, period=tau, iterations=K, rate=eta)
    require(0 <= mixing < 1, f"mixing={mixing:g}: a connected network has zeta from 0 to below 1")
    L, sigma2, share = problem.L, problem.sigma2, 1 + v / m
    used = eta * L + 5 * eta**2 * L**2 * (share * tau / (1 - mixing)) ** 2
    require(
        used <= 1,
        f"eta L + 5 eta^2 L^2 ((1 + v/m) tau / (1 - zeta))^2 = {used:.3g} exceeds 1 for rate={eta:g}, period={tau}, "
        f"zeta={mixing:g}; take a smaller rate or period",
    )
    spread = (1 + mixing**2) / (1 - mixing**2) * tau - 1
    terms = {
        "start": 2 * problem.known("F0") / (eta * K),
        "noise": eta * L * sigma2 / m,
        "drift": eta**2 * L**2 * sigma2 * spread * share**2,
    }
    return Bound("|grad f|^2", terms, math.ceil(K / tau), tau, eta, ("eta L + 5 eta^2 L^2 (…)^2 <= 1",))


def zeta(W: ArrayLike) -> float:
    """Return max(|lambda_2|, |lambda_last|) of a symmetric doubly stochastic matrix: 0 averages at once, 1 never."""
    matrix = np.asarray(W, dtype=float)
    require(
        matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] and bool(np.allclose(matrix, matrix.T)),
        f"W of shape {matrix.shape} must be square and symmetric",
    )
    require(bool(np.allclose(matrix.sum(axis=0), 1)), "the rows of W must sum to 1; scale them")
    others = np.abs(np.sort(np.linalg.eigvalsh(matrix))[:-1]).max(initial=0.0)
    return float(others) if others > 1e-12 else 0.0  # rounding must not make plain averaging drift


def recommended_rate(problem: Problem, *, workers: int, iterations: int) -> float:
    """Return the rate sqrt(m / K) / L, for m workers and K iterations."""
    return math.sqrt(workers / iterations) / problem.L


def largest_period(problem: Problem, *, workers: int, iterations: int, mixing: float = 0.0, auxiliary: int = 0) -> int:
    """Return the largest tau at the recommended rate that the condition allows and whose drift stays below the noise.

    Of the order of sqrt(K) / m^(3/2), hence Table IV's rounds.
    """
    rate = recommended_rate(problem, workers=workers, iterations=iterations)
    share = 1 + auxiliary / workers

    def keeps_speed_up(tau: int) -> bool:
        allowed = rate * problem.L + 5 * (rate * problem.L * share * tau / (1 - mixing)) ** 2 <= 1
        spread = (1 + mixing**2) / (1 - mixing**2) * tau - 1
        return allowed and rate * problem.L * spread * share**2 <= 1 / workers

    return largest(keeps_speed_up, iterations)


def iterations_to(epsilon: float, problem: Problem, *, workers: int, mixing: float = 0.0) -> int:
    """Return the smallest K that brings the bound to epsilon, at the recommended rate and its largest period."""
    counts(epsilon=epsilon)

    def reached(K: int) -> bool:
        rate = recommended_rate(problem, workers=workers, iterations=K)
        if rate * problem.L + 5 * (rate * problem.L / (1 - mixing)) ** 2 > 1:
            return False
        tau = largest_period(problem, workers=workers, iterations=K, mixing=mixing)
        chosen = bound(problem, workers=workers, period=tau, iterations=K, rate=rate, mixing=mixing)
        return chosen.total <= epsilon

    return smallest(reached, "number of iterations")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N^(3/2) T^(1/2), and never more than T."""
    return min(float(iterations), math.pow(workers, 1.5) * math.sqrt(iterations))

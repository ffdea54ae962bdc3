"""LUPA-SGD: local SGD under the PL condition."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, largest, smallest


@technique(
    "theory_haddadpour_2019",
    axis="theory",
    paper="Haddadpour, Kamani, Mahdavi, Cadambe, NeurIPS 2019",
    why_no_word=A_BOUND,
)
def bound(problem: Problem, *, workers: int, period: int, iterations: int, batch: int = 1) -> Bound:
    """Bound the error of local SGD under PL with unbounded gradients: linear speed-up at O((N T)^(1/3)) rounds.

    Rates are 4 / (mu (t + a)) with a = alpha tau + 4. The paper bounds alpha exp(-2/alpha) by kappa sqrt(192 (N+1)/N)
    and wants it large; the limit itself is taken. Numerical constants are quoted from memory.
    """
    N, tau, T = workers, period, iterations
    counts(workers=N, period=tau, iterations=T, batch=batch)
    mu, kappa, a = problem.known("mu"), problem.kappa, offset(problem, workers=N, period=tau)
    scale = kappa * problem.sigma2 * T / (mu * N * batch * (T + a) ** 3)
    terms = {
        "start": a**3 / (T + a) ** 3 * problem.known("F0"),
        "noise": 4 * scale * (T + 2 * a),
        "drift": 256 * kappa * scale * (tau - 1),
    }
    return Bound("f - f*", terms, math.ceil(T / tau), tau, 4 / (mu * a), ("a = alpha tau + 4",))


def offset(problem: Problem, *, workers: int, period: int) -> float:
    """Return a = alpha tau + 4, with alpha from alpha exp(-2/alpha) = kappa sqrt(192 (N+1)/N), by fixed point."""
    limit = problem.kappa * math.sqrt(192 * (workers + 1) / workers)
    alpha = limit
    for _ in range(100):
        alpha = limit * math.exp(2 / alpha)
    return alpha * period + 4


def largest_period(problem: Problem, *, workers: int, iterations: int) -> int:
    """Return the largest tau that leaves the noise dominant: of the order of T^(2/3) / N^(1/3)."""

    def noise_dominates(tau: int) -> bool:
        terms = bound(problem, workers=workers, period=tau, iterations=iterations).terms
        return max(terms["start"], terms["drift"]) <= terms["noise"]

    return largest(noise_dominates, iterations)


def next_period(first_period: int, first_loss: float, loss: float) -> int:
    """Return the next period of ADA-LUPA-SGD, which averages less often as the loss falls.

    The rule is known in words only; the reading chosen is in proportion to F0 / F.
    """
    counts(first_period=first_period, first_loss=first_loss, loss=loss)
    return max(first_period, math.ceil(first_period * first_loss / loss))


def iterations_to(epsilon: float, problem: Problem, *, workers: int) -> int:
    """Return the smallest T that brings the bound to epsilon, at its own largest period."""
    counts(epsilon=epsilon)

    def reached(T: int) -> bool:
        tau = largest_period(problem, workers=workers, iterations=T)
        return bound(problem, workers=workers, period=tau, iterations=T).total <= epsilon

    return smallest(reached, "number of iterations")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N^(1/3) T^(1/3)."""
    return math.cbrt(workers * iterations)

"""Local SGD with growing gaps between averagings: as many rounds as workers, however long the training."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require, smallest

UNKNOWN = ("C1", "C2", "C3", "the offset beta")


@technique(
    "theory_spiridonoff_2021",
    axis="theory",
    paper="Spiridonoff, Olshevsky, Paschalidis, NeurIPS 2021",
    why_no_word=A_BOUND,
)
def bound(problem: Problem, *, workers: int, iterations: int, rounds: int) -> Bound:
    """Give the order of local SGD's error with linearly growing gaps: linear speed-up at O(N) rounds, whatever T.

    Strongly convex, noise may grow with the gradient. The constants are not established (1 here); nor is beta, chosen
    as 2 kappa so that the first rate 2 / (mu beta) is 1/L. A single final average is enough near a smooth optimum.
    """
    N, T, R = workers, iterations, rounds
    counts(workers=N, iterations=T, rounds=R)
    mu, kappa = problem.known("mu"), problem.kappa
    ideal = problem.sigma2 / (mu * N * T)
    terms = {"start": problem.known("F0") / T**2, "noise": ideal, "drift": kappa * ideal * N / R}
    return Bound("f - f*", terms, R, gaps(T, R)[0], 1 / problem.L, unknown=UNKNOWN)


def gaps(iterations: int, rounds: int) -> list[int]:
    """Return the gaps H_i = a (i + 1) with a = ceil(2 T / R^2): they cover T, and the last ends with training."""
    T, R = iterations, rounds
    counts(iterations=T, rounds=R)
    require(R * (R - 1) < 2 * T, f"rounds={R} are more than growing gaps of {T} iterations can have; give fewer")
    a = math.ceil(2 * T / R**2)
    return [a * (i + 1) for i in range(R)]


def rate(problem: Problem, step: int) -> float:
    """Return the learning rate eta_t = 2 / (mu (t + beta)) with beta = 2 kappa."""
    return 2 / (problem.known("mu") * (step + 2 * problem.kappa))


def ratio_to_ideal(problem: Problem, *, workers: int, rounds: int) -> float:
    """Return the ratio of the final error to sigma2 / (mu N T) for large T, with all constants 1."""
    return 1 + problem.kappa * workers / rounds


def iterations_to(epsilon: float, problem: Problem, *, workers: int) -> int:
    """Return the smallest T whose error is below epsilon with as many rounds as workers (constants 1)."""
    counts(epsilon=epsilon)

    def reached(T: int) -> bool:
        if workers * (workers - 1) >= 2 * T:
            return False
        return bound(problem, workers=workers, iterations=T, rounds=workers).total <= epsilon

    return smallest(reached, "number of iterations")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N, independent of T."""
    return float(workers)

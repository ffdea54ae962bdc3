"""Local SGD against minibatch SGD on convex objectives, where neither is always better."""

from __future__ import annotations

import math
from collections.abc import Callable

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, smallest

CONSTANT = ("one universal constant for all terms",)


@technique("theory_woodworth_2020", axis="theory", paper="Woodworth et al., ICML 2020", why_no_word=A_BOUND)
def bound(problem: Problem, *, workers: int, period: int, rounds: int) -> Bound:
    """Bound the error of local SGD on smooth convex objectives, in R rounds of K local steps each, up to a constant.

    Local SGD is also never worse than one worker alone; the smaller of both is given. On quadratics minibatch SGD is
    never better; in general neither dominates. Universal constants are no part of the statement.
    """
    N, K, R = workers, period, rounds
    counts(workers=N, period=K, rounds=R)
    L, B, sigma = problem.L, problem.known("R0"), math.sqrt(problem.sigma2)
    start = L * B**2 / (K * R)
    together = {
        "start": start,
        "noise": sigma * B / math.sqrt(N * K * R),
        "drift": (L * sigma**2 * B**4) ** (1 / 3) / (K ** (1 / 3) * R ** (2 / 3)),
    }
    alone = {"start": start, "noise of one worker": sigma * B / math.sqrt(K * R)}
    return Bound("f - f*", min(together, alone, key=lambda t: sum(t.values())), R, K, unknown=CONSTANT)


def minibatch(problem: Problem, *, workers: int, period: int, rounds: int, accelerated: bool = False) -> Bound:
    """Return the bound of minibatch SGD with as many samples in R large batches, in which L B^2 / R (accelerated: /
    R^2) takes the place of local progress."""
    counts(workers=workers, period=period, rounds=rounds)
    B = problem.known("R0")
    terms = {
        "start": problem.L * B**2 / rounds ** (2 if accelerated else 1),
        "noise": math.sqrt(problem.sigma2) * B / math.sqrt(workers * period * rounds),
    }
    return Bound("f - f*", terms, rounds, 1, unknown=CONSTANT)


def crossover_period(problem: Problem, *, workers: int, rounds: int) -> float:
    """Return the K, not rounded, at which local SGD's bound equals minibatch SGD's; above it local SGD is better."""
    return _root(lambda K: _lead(problem, workers, K, rounds))


def crossover_rounds(problem: Problem, *, workers: int, period: int) -> float:
    """Return the R at which both bounds are equal for this K; below it local SGD is better. It may be infinite."""
    if _lead(problem, workers, period, 1e15) >= 0:
        return math.inf
    return _root(lambda R: -_lead(problem, workers, period, R))


def best(problem: Problem, *, workers: int, period: int, rounds: int) -> str:
    """Return the name of the method with the smallest of the three bounds."""
    totals = {
        "local SGD": bound(problem, workers=workers, period=period, rounds=rounds).total,
        "minibatch SGD": minibatch(problem, workers=workers, period=period, rounds=rounds).total,
        "accelerated minibatch SGD": minibatch(
            problem, workers=workers, period=period, rounds=rounds, accelerated=True
        ).total,
    }
    return min(totals, key=totals.__getitem__)


def _lead(problem: Problem, workers: int, period: float, rounds: float) -> float:
    """By how much minibatch SGD's bound exceeds local SGD's; grows with K."""
    choice = {"workers": workers, "period": period, "rounds": rounds}
    return minibatch(problem, **choice).total - bound(problem, **choice).total  # type: ignore[arg-type]


def _root(rising: Callable[[float], float]) -> float:
    low, high = 1.0, 1e15
    if rising(low) >= 0:
        return low
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def iterations_to(epsilon: float, problem: Problem, *, workers: int) -> int:
    """Return the smallest T whose local bound reaches epsilon in as many rounds as Table IV asks for (constants 1)."""
    counts(epsilon=epsilon)

    def reached(T: int) -> bool:
        R = min(T, math.ceil(rounds(workers, T)))
        return bound(problem, workers=workers, period=T // R, rounds=R).total <= epsilon

    return smallest(reached, "number of iterations")


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of N polylog T; one power of the logarithm is taken."""
    return min(float(iterations), workers * max(1.0, math.log(iterations)))

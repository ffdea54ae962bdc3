"""CR-PSGD: batches that grow geometrically, so that few rounds see all the samples."""

from __future__ import annotations

import math

from laconic.registry import technique
from laconic.theory.values import A_BOUND, Bound, Problem, counts, require, smallest

_MOST_ROUNDS = 300_000


@technique("theory_yu_jin_2019", axis="theory", paper="Yu and Jin, ICML 2019", why_no_word=A_BOUND)
def bound(problem: Problem, *, workers: int, samples: int, rate: float, growth: float, first_batch: int = 1) -> Bound:
    """Bound the error under the PL condition after T gradients per worker in O(log T) rounds of growing batches.

    The error follows e <- (1 - g mu) e + L g^2 sigma2 / (2 N B_r), which needs g <= 1/L alone. Both parts shrink in
    proportion to 1/T only if the growth stays below 1 / (1 - g mu): a larger one is flagged (range from memory).
    """
    counts(workers=workers, samples=samples, rate=rate)
    L, mu, g = problem.L, problem.known("mu"), rate
    require(g < 1 / L, f"rate={g:g} must be below 1/L = {1 / L:g}")
    batches = schedule(samples, growth, first_batch)
    noise = 0.0
    for batch in batches:
        noise = (1 - g * mu) * noise + L * g**2 * problem.sigma2 / (2 * workers * batch)
    terms = {"start": (1 - g * mu) ** len(batches) * problem.known("F0"), "noise": noise}
    limit = largest_growth(problem, rate)
    warnings = (f"growth={growth:g} exceeds 1/(1 - g mu) = {limit:g}: too few rounds for the start to fade",)
    return Bound("f - f*", terms, len(batches), 1, g, ("g < 1/L",), warnings=warnings if growth > limit else ())


def schedule(samples: int, growth: float, first_batch: int = 1) -> list[int]:
    """Return the batches B_r = floor(rho^(r-1) B_1) while their sum is within T.

    Rounding does not compound, since small batches would never grow otherwise.
    """
    counts(first_batch=first_batch)
    require(growth > 1, f"growth={growth:g}: batches must grow; give a number above 1")
    require(samples >= first_batch, f"samples={samples} do not fill the first batch of {first_batch}")
    rounds = closed_rounds(samples, growth, first_batch)
    require(rounds <= _MOST_ROUNDS, f"it sums {rounds:.0e} rounds, one by one, which are too many; give a larger --mu")
    batches: list[int] = []
    size, left = float(first_batch), samples
    while math.floor(size) <= left:
        batches.append(math.floor(size))
        left -= batches[-1]
        size *= growth
    return batches


def closed_rounds(samples: int, growth: float, first_batch: int = 1) -> float:
    """Return log_rho(1 + T (rho - 1) / B_1), the number of rounds if batches were not rounded to whole samples."""
    return math.log1p(samples * (growth - 1) / first_batch) / math.log(growth)


def largest_growth(problem: Problem, rate: float) -> float:
    """Return 1 / (1 - g mu); with a larger growth, noise shrinks sooner than the initial error is forgotten."""
    return 1 / (1 - rate * problem.known("mu"))


def recommended(problem: Problem) -> tuple[float, float]:
    """Return a rate of 1/(2L) and half the growth that it allows; both are choices that the paper leaves open."""
    rate = 1 / (2 * problem.L)
    return rate, 1 + (largest_growth(problem, rate) - 1) / 2


def iterations_to(epsilon: float, problem: Problem, *, workers: int) -> int:
    """Return the smallest T (gradients per worker) whose predicted error is below epsilon, as recommended."""
    counts(epsilon=epsilon)
    g, rho = recommended(problem)
    return smallest(
        lambda T: bound(problem, workers=workers, samples=T, rate=g, growth=rho).total <= epsilon, "number of gradients"
    )


def rounds(workers: int, iterations: int) -> float:
    """Return the rounds of Table IV, of the order of log T."""
    return max(1.0, math.log(iterations))


def catalyst_rounds(workers: int, iterations: int) -> float:
    """Return the rounds without PL (CR-PSGD-Catalyst, proximal outer steps), of the order of sqrt(N T) log(T / N)."""
    require(iterations > workers, f"iterations={iterations} must exceed workers={workers}")
    return math.sqrt(workers * iterations) * math.log(iterations / workers)

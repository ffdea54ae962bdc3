"""Asynchrony acts like momentum, so momentum must be tuned down as workers are added."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laconic.registry import technique
from laconic.theory.values import A_BOUND, counts, require

Array = NDArray[np.float64]


@technique(
    "asynchrony_momentum",
    axis="theory",
    paper="Mitliagkas, Zhang, Hadjis, Re, Allerton 2016",
    evidence="published",
    reproduces="implicit momentum 1 - 1/M and step η/M, fitted to simulated runs (to 0.05 and 20 %)",
    why_no_word=A_BOUND,
)
def implicit_momentum(workers: int) -> float:
    """Return the momentum 1 - 1/M that M asynchronous workers with exponential compute times add; steps become lr / M.

    E[x_{t+1} - x_t] = (1 - 1/M) E[x_t - x_{t-1}] - (lr/M) E[grad f(x_t)], from the second step on (all workers begin at
    x_0, so the first is a plain one). Equal deterministic times have constant staleness, to which it does not apply.
    """
    counts(workers=workers)
    return 1 - 1 / workers


def staleness_law(workers: int, longest: int) -> Array:
    """Return P(tau = k) for k = 0 … longest, which is geometric with mean M - 1 for M workers."""
    return np.asarray(implicit_momentum(workers) ** np.arange(longest + 1) / workers, dtype=np.float64)


def memory(law: Array) -> Array:
    """Return the weights of past steps under a staleness law q: step k back weighs 1 - (q_0 + … + q_k).

    For the geometric law this is (1 - 1/M)^(k+1): a momentum's memory.
    """
    require(bool(np.all(law >= 0)) and float(law.sum()) <= 1 + 1e-9, "a staleness law is made of probabilities")
    return np.asarray(1 - np.cumsum(law))


def recursion(curvature: Array, start: Array, rate: float, workers: int, steps: int) -> Array:
    """Return the expected trajectory on the quadratic of these curvatures, of shape (steps + 1, dimension)."""
    mu = implicit_momentum(workers)
    path = [start, start - rate * curvature * start]
    while len(path) <= steps:
        path.append(path[-1] + mu * (path[-1] - path[-2]) - rate / workers * curvature * path[-1])
    return np.array(path[: steps + 1])


def fit(path: Array, gradients: Array) -> tuple[float, float]:
    """Return the momentum and the step that explain a mean trajectory, by regression of its steps.

    x_{t+1} - x_t is regressed on x_t - x_{t-1} and -grad f(x_t).
    """
    require(len(path) >= 4, f"a trajectory of {len(path)} points cannot be fitted; record at least 4")
    steps = np.diff(path, axis=0)
    columns = np.stack([steps[:-1].ravel(), -gradients[1 : len(steps)].ravel()], axis=1)
    solution, *_ = np.linalg.lstsq(columns, steps[1:].ravel(), rcond=None)
    return float(solution[0]), float(solution[1])


def first_guess(best: float, workers: int, least: float = -0.9) -> float:
    """Return the explicit momentum to try first: the best without asynchrony, less what asynchrony adds.

    The sum of both is a simplification; the paper searches, negative values included.
    """
    return max(least, best - implicit_momentum(workers))

"""The linear programs of Gavel's objectives, by scipy's HiGHS.

The variables are X[m, j], the share of time for which job m is on GPUs of type j: 0 ≤ X, Σ_j X[m, j] ≤ 1, and the GPUs
of each type suffice, Σ_m workers[m] X[m, j] ≤ gpus[j]. Jobs that are alike get alike shares (what a solver would
return is one of many optima, and the equal split is another): rows that repeat are one variable with a count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from laconic.cluster.shares.problem import Shared
from laconic.errors import ClusterError


def highest_minimum(problem: Shared, per_job: np.ndarray) -> np.ndarray:
    """Return the shares X by which the smallest of per_job[m] Σ_j speeds[m, j] X[m, j] is as large as possible.

    - `problem`: the jobs.
    - `per_job`: by what each job's speed is multiplied.
    """
    rates = problem.speeds * per_job[:, None]
    rows, count, back = _alike(rates, problem)
    kinds, types = rows.rates.shape
    size = kinds * types
    target = np.zeros(size + 1)
    target[-1] = -1.0
    reach = np.zeros((kinds, size + 1))  # the smallest, the last variable, is at most each job's
    for k in range(kinds):
        reach[k, k * types : (k + 1) * types] = -rows.rates[k]
    reach[:, -1] = 1.0
    limits = np.concatenate([_limits(rows, count), np.zeros((kinds + types, 1))], axis=1)
    bounds = np.concatenate([np.zeros(kinds), np.ones(kinds), problem.gpus])
    solved = _solved(target, np.concatenate([reach, limits]), bounds)
    found: np.ndarray = solved[:-1].reshape(kinds, types)[back]
    return found


def highest_sum(problem: Shared, per_job: np.ndarray) -> np.ndarray:
    """Return the shares X by which the sum of per_job[m] Σ_j speeds[m, j] X[m, j] is as large as possible.

    - `problem`: the jobs.
    - `per_job`: by what each job's speed is multiplied.
    """
    rates = problem.speeds * per_job[:, None]
    rows, count, back = _alike(rates, problem)
    kinds, types = rows.rates.shape
    bounds = np.concatenate([np.ones(kinds), problem.gpus])
    solved = _solved(-(rows.rates * count[:, None]).ravel(), _limits(rows, count), bounds)
    found: np.ndarray = solved.reshape(kinds, types)[back]
    return found


class _Rows:
    def __init__(self, rates: np.ndarray, workers: np.ndarray) -> None:
        self.rates, self.workers = rates, workers


def _alike(rates: np.ndarray, problem: Shared) -> tuple[_Rows, np.ndarray, np.ndarray]:
    """Return different rows, how many jobs each stands for, and each job's row."""
    facts = np.concatenate([rates, problem.workers[:, None]], axis=1)
    rows, back, count = np.unique(facts, axis=0, return_inverse=True, return_counts=True)
    return _Rows(rows[:, :-1], rows[:, -1]), count, back.reshape(-1)


def _limits(rows: _Rows, count: np.ndarray) -> np.ndarray:
    """The left sides of what binds every program: a job's time, and each type's GPUs."""
    kinds, types = rows.rates.shape
    found = np.zeros((kinds + types, kinds * types))
    for k in range(kinds):
        found[k, k * types : (k + 1) * types] = 1.0
        for j in range(types):
            found[kinds + j, k * types + j] = count[k] * rows.workers[k]
    return found


def _solved(target: np.ndarray, left: np.ndarray, right: np.ndarray) -> Any:
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix

    answer = linprog(target, A_ub=csr_matrix(left), b_ub=right, bounds=(0, None), method="highs")
    if answer.status != 0:
        raise ClusterError(f"the shares of jobs have no solution: {answer.message}")
    return np.clip(answer.x, 0.0, None)

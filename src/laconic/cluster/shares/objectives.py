"""What shares of time are for: fairness, an early end, early arrivals first, or fair finish times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laconic.cluster.shares.problem import Shared
from laconic.cluster.shares.programs import highest_minimum, highest_sum

_CLOSE = 1e-3  # of a ratio of finish times, at which bisection ends


def least_attained_service(problem: Shared) -> np.ndarray:
    """Return shares by which the least that any job gets, beside what an equal split of all GPUs would give it and
    times its workers over its weight, is as large as possible.

    - `problem`: the jobs.
    """
    return highest_minimum(problem, problem.workers / (problem.weights * problem.equal_speeds))


def makespan(problem: Shared, remaining: np.ndarray) -> np.ndarray:
    """Return shares by which the last job is done as early as possible.

    - `problem`: the jobs.
    - `remaining`: the work that each has to do.
    """
    return highest_minimum(problem, 1.0 / np.maximum(remaining, 1e-9))


def first_come(problem: Shared) -> np.ndarray:
    """Return shares by which jobs that came first run as fast as they can: each counts by how many came after it.

    - `problem`: the jobs, in the order of their arrivals.
    """
    count = len(problem.workers)
    return highest_sum(problem, (count - np.arange(count)) / problem.speeds.max(axis=1))


def finish_time_fairness(problem: Shared, remaining: np.ndarray, elapsed: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """Return shares by which the largest ρ, a job's finish time over that by an equal part of the cluster, is as small
    as possible: (elapsed + remaining / speed) / (alone + remaining / speed in that part). It is found by bisection,
    each step a linear program.

    - `problem`: the jobs.
    - `remaining`: the work that each has to do.
    - `elapsed`: the seconds since each arrived.
    - `alone`: the seconds that it would have taken for the work that it has done, in its part of the cluster.
    """
    part = np.minimum(1.0, problem.gpus.sum() / (len(problem.workers) * problem.workers))
    fair = alone + remaining / (problem.equal_speeds * part)
    low, high = 0.0, 2.0 * float(np.max((elapsed + remaining / (problem.equal_speeds * part)) / fair))
    found = None
    while found is None or high - low > _CLOSE * high:
        middle = high if found is None else (low + high) / 2
        left = middle * fair - elapsed
        shares = None if np.any(left <= 0) else _reaching(problem, remaining / left)
        if shares is None:
            low, high = (middle, high) if found is not None else (middle, 2 * high)
        else:
            found, high = shares, middle
    return found


def _reaching(problem: Shared, least: np.ndarray) -> np.ndarray | None:
    """Return shares by which each job's speed is at least so much, or None where there are none."""
    found = highest_minimum(problem, 1.0 / np.maximum(least, 1e-12))
    reached = (problem.speeds * found).sum(axis=1)
    return found if np.all(reached >= least * (1 - 1e-7)) else None


def blindly(solve: Callable[[Shared], np.ndarray], problem: Shared) -> np.ndarray:
    """Return the shares of somebody who takes all types of GPU for alike: each job's time is split by what there is.

    - `solve`: what finds shares.
    - `problem`: the jobs.
    """
    shares: np.ndarray = solve(problem.blind()) * problem.equal
    return shares

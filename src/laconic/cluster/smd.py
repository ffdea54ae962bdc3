"""SMD: which jobs run, and with how many workers and parameter servers, by sums of ratios and a knapsack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laconic.cluster.optimus_fits import ServerSpeed
from laconic.registry import technique


@dataclass(frozen=True)
class RatioJob:
    """A job that trains with parameter servers.

    - `speed`: of a step; the time of one is a sum of ratios of workers and servers.
    - `steps`: that it has still to make.
    - `utility`: of the seconds until it is done; it does not rise with them.
    - `worker`, `server`: what one of each takes of every resource.
    - `most`: the workers and the servers that it can use.
    """

    speed: ServerSpeed
    steps: float
    utility: Callable[[float], float]
    worker: tuple[float, ...]
    server: tuple[float, ...]
    most: tuple[int, int]

    def seconds(self, workers: int, servers: int) -> float:
        """Return how long the job takes.

        - `workers`, `servers`: how many it has.
        """
        return self.steps / self.speed.steps_per_second(servers, workers)


class Choice(NamedTuple):
    """Workers and servers of a job, what that is worth, and what it takes of every resource."""

    workers: int
    servers: int
    utility: float
    needs: tuple[float, ...]


@technique(
    "smd",
    axis="cluster",
    paper="Yu, Wu, Ji, Liu, INFOCOM 2021",
    why_no_word="It decides once for a set of jobs with parameter servers, which train as `bsp / none / ps`.",
)
def sum_of_ratios(
    jobs: Sequence[RatioJob], capacity: Sequence[float], eps: float = 0.1, seed: int = 0
) -> list[Choice | None]:
    """Return the workers and servers of each job, or None where it is not admitted, so that the sum of utilities is
    large and no resource is exceeded.

    For each job alone, and each of many demand levels (shares of the capacity, on a grid, all resources alike or one
    of them scarcer), the quickest numbers within the level are sought: denominators of the ratios become parameters on
    a grid of ratio 1 + `eps`, which leaves a linear program whose optimum is at its smallest workers and servers; these
    are rounded up or down at random, within a margin. Then at most one choice of each job is taken, by a knapsack
    of several dimensions: each choice in turn is guessed to be the most valuable one, a linear program tells the rest,
    what is fractional is left out, and what then fits is added; guessing ends within half of `eps` of what the linear
    program of all jobs gives. The constants of rounding are a reading.

    - `jobs`: those that compete.
    - `capacity`: of each resource.
    - `eps`: the ratio of grids, less one.
    - `seed`: of rounding.
    """
    limit = np.asarray(capacity, dtype=float)
    draws = np.random.default_rng(seed)
    return _knapsack([choices(job, limit, eps, draws) for job in jobs], limit, eps)


def choices(job: RatioJob, capacity: np.ndarray, eps: float, draws: np.random.Generator) -> list[Choice]:
    """Return the best numbers of a job for each demand level, without those that another beats in everything.

    - `job`: the job, alone.
    - `capacity`: of each resource.
    - `eps`: the ratio of grids, less one.
    - `draws`: of rounding.
    """
    grids = [np.r_[(1 + eps) ** np.arange(np.log(most) / np.log(1 + eps)), most] for most in job.most]
    workers, servers = (axis.ravel() for axis in np.meshgrid(*grids, indexing="ij"))
    worker, server = np.array(job.worker), np.array(job.server)
    needs = workers[:, None] * worker + servers[:, None] * server
    seconds = np.array([job.seconds(w, p) for w, p in zip(workers, servers, strict=True)])
    found: dict[tuple[int, int], Choice] = {}
    for level in _levels(capacity, eps):
        fits = np.flatnonzero((needs <= level).all(axis=1))
        if not len(fits):
            continue
        best = fits[seconds[fits].argmin()]
        for w, p in _rounded(float(workers[best]), float(servers[best]), draws):
            takes = w * worker + p * server
            if w <= job.most[0] and p <= job.most[1] and (takes <= level).all():
                found[w, p] = Choice(w, p, job.utility(job.seconds(w, p)), tuple(takes.tolist()))
    return _undominated([choice for choice in found.values() if choice.utility > 0])


def _levels(capacity: np.ndarray, eps: float, least: float = 0.01) -> list[np.ndarray]:
    """Return demand levels: shares of all resources, and of all but one, of which there is less."""
    shares = (1 + eps) ** -np.arange(np.log(1 / least) / np.log(1 + eps))
    directions = [np.ones(len(capacity))]
    for resource in range(len(capacity)):
        for scarce in (0.5, 0.25, 0.1):
            directions.append(np.where(np.arange(len(capacity)) == resource, scarce, 1.0))
    return [share * direction * capacity for share in shares for direction in directions]


def _rounded(workers: float, servers: float, draws: np.random.Generator) -> set[tuple[int, int]]:
    """Return whole numbers near fractional ones: down, and a few draws by which the mean is kept."""
    pair = np.array([workers, servers])
    down = np.maximum(np.floor(pair + 1e-9), 1)
    drawn = down + (draws.random((3, 2)) < pair - down)
    return {(int(w), int(p)) for w, p in [down, *drawn]}


def _undominated(found: list[Choice]) -> list[Choice]:
    return [
        one
        for one in found
        if not any(
            other is not one
            and other.utility >= one.utility
            and all(a <= b for a, b in zip(other.needs, one.needs, strict=True))
            for other in found
        )
    ]


def _knapsack(options: Sequence[Sequence[Choice]], capacity: np.ndarray, eps: float) -> list[Choice | None]:
    """Return at most one choice of each job whose utilities are large together."""
    flat = [(job, choice) for job, some in enumerate(options) for choice in some]
    best: list[Choice | None] = [None] * len(options)
    if not flat:
        return best
    owner = np.array([job for job, _ in flat])
    utility = np.array([choice.utility for _, choice in flat])
    needs = np.array([choice.needs for _, choice in flat])
    bound, _ = _relaxed(owner, utility, needs, np.full(len(flat), True), capacity)
    reached = 0.0
    for guess in np.argsort(-utility, kind="stable").tolist():
        rest = (utility <= utility[guess]) & (owner != owner[guess])
        _, whole = _relaxed(owner, utility, needs, rest, capacity - needs[guess])
        taken = _filled([guess, *whole], owner, utility, needs, capacity)
        if utility[taken].sum() > reached:
            reached, best = float(utility[taken].sum()), [None] * len(options)
            for index in taken:
                best[flat[index][0]] = flat[index][1]
            if reached >= (1 - eps / 2) * bound:
                break
    return best


def _relaxed(
    owner: np.ndarray, utility: np.ndarray, needs: np.ndarray, among: np.ndarray, capacity: np.ndarray
) -> tuple[float, list[int]]:
    """Return the utility of the best fractions of some choices, and those that are whole in it."""
    from scipy.optimize import linprog

    columns = np.flatnonzero(among)
    if not len(columns):
        return 0.0, []
    once = (owner[columns][None, :] == np.unique(owner[columns])[:, None]).astype(float)
    table = np.concatenate([needs[columns].T, once])
    found = linprog(-utility[columns], A_ub=table, b_ub=[*capacity, *np.ones(len(once))], method="highs")
    return -float(found.fun), columns[found.x > 1 - 1e-6].tolist()


def _filled(
    taken: list[int], owner: np.ndarray, utility: np.ndarray, needs: np.ndarray, capacity: np.ndarray
) -> list[int]:
    """Add, and put better in the place of worse, what gains most while it fits."""
    jobs = int(owner.max()) + 1
    while True:
        has, holds = np.zeros(jobs), np.zeros((jobs, len(capacity)))
        has[owner[taken]], holds[owner[taken]] = utility[taken], needs[taken]
        gains = utility - has[owner]
        fits = (needs - holds[owner] <= capacity - holds.sum(axis=0) + 1e-9 * capacity).all(axis=1) & (gains > 1e-12)
        if not fits.any():
            return taken
        index = int(np.where(fits, gains, -np.inf).argmax())
        taken = [*(i for i in taken if owner[i] != owner[index]), index]

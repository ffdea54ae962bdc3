"""Trainings that may end early: the cheapest plan of configurations that is in time even if they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.errors import ClusterError


@dataclass(frozen=True)
class EarlyStopping:
    """A job of epochs that converges after some of them, which nobody knows before.

    - `work`: the epochs after which it does.
    - `survival`: the probability with which it begins its first, second, ... epoch; as many as there can be.
    - `speeds`: epochs a second on 1, 2, ... GPUs of one host.
    """

    work: float
    survival: tuple[float, ...]
    speeds: tuple[float, ...]

    def __post_init__(self) -> None:
        falls = all(0 <= b <= a <= 1 for a, b in zip((1.0, *self.survival), self.survival, strict=False))
        if not self.survival or not falls or not 0 < self.work <= len(self.survival):
            raise ClusterError("the probability to begin an epoch falls from 1, and a job ends within its epochs")
        if not self.speeds or min(self.speeds) <= 0:
            raise ClusterError("a job needs a speed above 0 for each number of GPUs")

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        return Rate(self.speeds[min(len(grant.slots), len(self.speeds)) - 1], self.work)

    def ahead(self, done: float) -> tuple[tuple[float, float], ...]:
        """Return what may be left, as pieces of epochs with the probability to reach each, given that the job has come
        so far: pieces end where it may have ended, so that something is learned by going on.

        - `done`: the epochs that are over.
        """
        first = min(math.floor(done + 1e-9), len(self.survival) - 1)
        chances = [one / self.survival[first] for one in self.survival[first:]]
        pieces: list[tuple[float, float]] = []
        for number, chance in enumerate(chances):
            length = min(first + number + 1 - done, 1.0)
            if pieces and pieces[-1][1] == chance:
                pieces[-1] = pieces[-1][0] + length, chance
            else:
                pieces.append((length, chance))
        return tuple(piece for piece in pieces if piece[0] > 0 and piece[1] > 0)


class Configuration(NamedTuple):
    """A number of GPUs, with what an epoch takes on it.

    - `gpus`: how many.
    - `seconds`, `cost`: of an epoch.
    """

    gpus: int
    seconds: float
    cost: float


class Plan(NamedTuple):
    """Configurations for the pieces that may be left of a job.

    - `gpus`: of each piece.
    - `expected`: what is expected to be paid, tardiness included.
    - `seconds`: what it takes if the job does not end early.
    - `until`: the seconds after which the first configuration changes; infinite where it does not.
    """

    gpus: tuple[int, ...]
    expected: float
    seconds: float
    until: float


@lru_cache(1 << 14)
def cheapest(
    pieces: tuple[tuple[float, float], ...], choices: tuple[Configuration, ...], due: float, weight: float
) -> Plan:
    """Return the plan with the least expected cost among those that are in time even if the job does not end early:
    cheap configurations for what is likely to be run, fast ones for what is not. A plan changes only between pieces, so
    that a job whose length is certain has one configuration, the cheapest that is in time.

    Each piece takes the least of its expected cost and a price on its seconds, which is raised until the plan is in
    time; then pieces are made cheaper one by one while it still is. Where even the fastest is late, it is the best
    constant configuration, with tardiness at its weight.

    - `pieces`: epochs that may be left, with the probability of each.
    - `choices`: what can be used.
    - `due`: seconds until the job should be done.
    - `weight`: of a second of tardiness.
    """
    lengths, chances = (np.array(column) for column in zip(*pieces, strict=True))
    costs = np.outer(lengths * chances, [one.cost for one in choices])
    seconds = np.outer(lengths, [one.seconds for one in choices])
    late = seconds.sum(axis=0) > due * (1 + 1e-12)
    constant = costs.sum(axis=0) + np.where(late, weight * (seconds.sum(axis=0) - due), 0.0)
    if late.all():
        best = np.full(len(lengths), int(constant.argmin()))
    else:
        best = np.full(len(lengths), int(np.where(late, np.inf, constant).argmin()))
        if len(lengths) > 1:
            mixed = _relaxed(costs, seconds, due)
            rows = np.arange(len(lengths))
            if mixed is not None and costs[rows, mixed].sum() < costs[rows, best].sum():
                best = mixed
    return _plan(pieces, choices, best, due, weight)


def _relaxed(costs: np.ndarray, seconds: np.ndarray, due: float) -> np.ndarray | None:
    """Return the choice of each piece at the least price of a second at which all are in time."""
    rows = np.arange(len(costs))

    def chosen(price: float) -> np.ndarray:
        found: np.ndarray = (costs + price * seconds).argmin(axis=1)
        return found

    def is_in_time(choice: np.ndarray) -> bool:
        return bool(seconds[rows, choice].sum() <= due * (1 + 1e-12))

    low, high = 0.0, float(costs.max() / seconds.min())
    found = chosen(low)
    if not is_in_time(found):
        while not is_in_time(chosen(high)):
            if high > 1e12 * costs.max() / seconds.min():
                return None
            high *= 4
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if is_in_time(chosen(middle)) else (middle, high)
        found = chosen(high)
    spare = due - seconds[rows, found].sum()
    for row in rows[np.argsort(-costs[rows, found], kind="stable")]:
        fits = seconds[row] - seconds[row, found[row]] <= spare
        other = int(np.where(fits, costs[row], np.inf).argmin())
        if costs[row, other] < costs[row, found[row]]:
            spare -= seconds[row, other] - seconds[row, found[row]]
            found[row] = other
    return found


def _plan(
    pieces: Sequence[tuple[float, float]],
    choices: Sequence[Configuration],
    best: np.ndarray,
    due: float,
    weight: float,
) -> Plan:
    used = [choices[number] for number in best.tolist()]
    taken = [length * one.seconds for (length, _), one in zip(pieces, used, strict=True)]
    expected = sum(length * chance * one.cost for (length, chance), one in zip(pieces, used, strict=True))
    whole, until = sum(taken), 0.0
    for one, seconds in zip(used, taken, strict=True):
        if one != used[0]:
            break
        until += seconds
    else:
        until = math.inf
    return Plan(tuple(one.gpus for one in used), expected + weight * max(whole - due, 0.0), whole, until)

"""GPOEO: the clock at which a GPU trains with least energy and is not much slower, predicted and then sought."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from laconic.cluster.energy.boosted_trees import Boosted, fit_trees
from laconic.errors import ClusterError
from laconic.registry import technique

GOLDEN = (5**0.5 - 1) / 2


class Measured(NamedTuple):
    """Joules and seconds of an iteration."""

    energy: float
    seconds: float


class Tuned(NamedTuple):
    """A clock, what it was measured to take, and how many clocks were measured."""

    clock: float
    measured: Measured
    measurements: int


@dataclass(frozen=True)
class ClockModel:
    """What energy and time become, relative to the default clock, from counters of an iteration at the default.

    - `energy`, `seconds`: of rows of counters followed by a clock, as a share of the default.
    """

    energy: Boosted
    seconds: Boosted

    def best(self, counters: Sequence[float], clocks: Sequence[float], slowdown: float) -> float:
        """Return the clock with the least energy that is predicted, among those that are not too slow.

        - `counters`: of one iteration at the default clock.
        - `clocks`: that can be set, as shares of the default.
        - `slowdown`: the seconds that an iteration may take, as a share of those at the default.
        """
        rows = np.array([[*counters, clock] for clock in clocks])
        energy = np.where(self.seconds.predict(rows) <= slowdown, self.energy.predict(rows), np.inf)
        return float(clocks[int(energy.argmin())]) if np.isfinite(energy).any() else float(max(clocks))


def train_clock_model(
    counters: Sequence[Sequence[float]], clocks: Sequence[Sequence[float]], measured: Sequence[Sequence[Measured]]
) -> ClockModel:
    """Return the model of workloads that were measured off line.

    - `counters`: of each workload.
    - `clocks`: at which each was measured, as shares of the default, which is one of them.
    - `measured`: what each took at each of these.
    """
    rows, energy, seconds = [], [], []
    for facts, tried, found in zip(counters, clocks, measured, strict=True):
        if 1.0 not in tried:
            raise ClusterError("a workload has to be measured at the default clock, too: give 1.0 among its clocks")
        default = found[list(tried).index(1.0)]
        for clock, one in zip(tried, found, strict=True):
            rows.append([*facts, clock])
            energy.append(one.energy / default.energy)
            seconds.append(one.seconds / default.seconds)
    table = np.array(rows)
    return ClockModel(fit_trees(table, np.array(energy)), fit_trees(table, np.array(seconds)))


@technique(
    "gpoeo",
    axis="cluster",
    paper="Wang et al., IEEE Transactions on Parallel and Distributed Systems 33(11), 2022",
    evidence="modelled",
    holds="the search against a sweep of a model of power and time; clocks of real GPUs were not set",
    why_no_word="It sets a GPU's clocks beside any training, whose sentence stays as it is.",
)
def tune_clock(
    measure: Callable[[float], Measured],
    predicted: float,
    clocks: Sequence[float],
    slowdown: float = 1.05,
    most: int = 8,
) -> Tuned:
    """Return the clock with the least energy at which an iteration is not too slow, by few measurements.

    The default is measured first, then the predicted clock, then by golden sections of the larger side of the best one
    so far: a clock that is too slow ends the range below, and of two that are not, the one that takes more ends it on
    its side. The answer was measured within the bound; where no other was, it is the default. The SM's clock is tuned
    first, then in the same way that of the memory; a new period of iterations (`iteration_seconds`) starts both
    again. The paper's objective is recalled as this one: a least energy within a bound of slow-down.

    - `measure`: sets a clock, as a share of the default, and measures an iteration.
    - `predicted`: where to search first: `ClockModel.best`.
    - `clocks`: that can be set.
    - `slowdown`: the seconds that an iteration may take, as a share of those at the default.
    - `most`: the measurements that may be made.
    """
    known: dict[float, Measured] = {1.0: measure(1.0)}
    order = sorted(clocks)

    def cost(place: int) -> float:
        """Return the energy at a clock, infinite where it is too slow."""
        if order[place] not in known:
            known[order[place]] = measure(order[place])
        found = known[order[place]]
        return found.energy if found.seconds <= slowdown * known[1.0].seconds else math.inf

    low, high = -1, len(order)  # beyond both ends
    best = min(range(len(order)), key=lambda i: abs(order[i] - predicted))
    while cost(best) == math.inf and len(known) < most and high - best > 1:
        low, best = best, _section(best, high)
    while len(known) < most and high - low > 2:
        other = _section(best, high) if high - best > best - low else _section(best, low)
        inner, outer = (best, other) if cost(best) <= cost(other) else (other, best)
        low, high = (low, max(inner, outer)) if outer > inner else (min(inner, outer), high)
        best = inner
    clock = min(known, key=lambda one: (cost(order.index(one)) if one in order else known[one].energy, one))
    return Tuned(clock, known[clock], len(known))


def _section(best: int, end: int) -> int:
    """Return the place of a golden section between the best so far and an end of the range, which is excluded."""
    step = max(round((1 - GOLDEN) * abs(end - best)), 1)
    return best + step if end > best else best - step

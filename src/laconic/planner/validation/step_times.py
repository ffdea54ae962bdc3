"""The published step times against predictions: the fit, the errors, the regret of choosing, and the order."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from laconic.planner.validation.exchange_methods import simplest
from laconic.planner.validation.published_steps import UNEXPLAINED, Cell, Experiments, first_guess, predict
from laconic.values.price import Price

_SIGNIFICANT = 3.0  # standard deviations of the difference
_STEP, _ROUNDS, _ENOUGH = 0.02, 8, 0.1  # in logarithms: the minimum is flat


@dataclass(frozen=True)
class NetworkResult:
    """All methods with one model on so many GPUs."""

    model: str
    gpus: int
    measured: Mapping[str, float]
    deviations: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def chosen(self) -> str:
        """The simplest of those that are predicted to be as fast as any."""
        return simplest({method: 1 / rate for method, rate in self.predicted.items()})

    @property
    def best(self) -> str:
        return max(self.measured, key=self.measured.__getitem__)

    def regret(self, method: str) -> float:
        return 1 - self.measured[method] / self.measured[self.best]


@dataclass(frozen=True)
class Pair:
    """Two methods whose measured throughputs differ, the faster one first."""

    model: str
    gpus: int
    faster: str
    slower: str
    by: float
    right: bool

    @property
    def explained(self) -> bool:
        return not {(self.model, self.faster), (self.model, self.slower)} & UNEXPLAINED


@dataclass(frozen=True)
class Validation:
    """One network: what was fitted, and what was predicted for each cell."""

    network: str
    between: Price
    predictions: tuple[tuple[Cell, float], ...]

    @property
    def errors(self) -> list[tuple[Cell, float]]:
        return [(cell, predicted / cell.measured - 1) for cell, predicted in self.predictions]

    @property
    def mean_error(self) -> float:
        """Mean absolute error of throughput, where the measurement is explained."""
        return statistics.fmean(abs(error) for cell, error in self.errors if cell.explained)

    @cached_property
    def places(self) -> list[NetworkResult]:
        found = []
        for model, gpus in dict.fromkeys((cell.model, cell.gpus) for cell, _ in self.predictions):
            own = [(c, p) for c, p in self.predictions if (c.model, c.gpus) == (model, gpus)]
            measured = {cell.method: cell.measured for cell, _ in own}
            deviations = {cell.method: cell.deviation for cell, _ in own}
            found.append(NetworkResult(model, gpus, measured, deviations, {cell.method: p for cell, p in own}))
        return found

    @property
    def regrets(self) -> list[float]:
        """What choosing by prediction costs in each place, against the best that was measured there."""
        return [place.regret(place.chosen) for place in self.places]

    def constant_regret(self, method: str) -> float:
        """What it costs in the mean to choose the same method everywhere."""
        return statistics.fmean(place.regret(method) for place in self.places)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Methods whose throughputs lie more than three standard deviations of their difference apart: the root of the
        sum of both squares."""
        found = []
        for place in self.places:
            for pair in itertools.combinations(place.measured, 2):
                slower, faster = sorted(pair, key=place.measured.__getitem__)
                by = place.measured[faster] - place.measured[slower]
                if by > _SIGNIFICANT * math.hypot(*(place.deviations[method] for method in pair)):
                    right = place.predicted[faster] > place.predicted[slower]
                    found.append(Pair(place.model, place.gpus, faster, slower, by / place.measured[faster], right))
        return found

    def share_right(self, explained: bool = False) -> float:
        """Of the pairs, or of those without an unexplained measurement, how many are in the measured order."""
        return statistics.fmean(pair.right for pair in self.pairs if pair.explained or not explained)


def validate(experiments: Experiments, network: str) -> Validation:
    """Fit the network's two numbers to its own cells, and predict them all."""
    between = fit(experiments, network)
    return Validation(
        network, between, tuple((c, predict(c, experiments.facts, between)) for c in experiments.of(network))
    )


def fit(experiments: Experiments, network: str) -> Price:
    """Start-up and bandwidth with the least squares of relative errors: Broyden's steps in logarithms.

    Cells of one machine do not depend on either, so they are left out; so is what is unexplained.
    """
    import numpy as np

    cells = [cell for cell in experiments.of(network) if cell.gpus > 4 and cell.explained]
    guess = first_guess(experiments.facts, network)
    at = np.log([guess.startup_seconds, guess.seconds_per_byte])

    def errors(where: np.ndarray) -> np.ndarray:
        price = Price(*(float(x) for x in np.exp(where)))
        return np.array([predict(cell, experiments.facts, price) / cell.measured - 1 for cell in cells])

    now = errors(at)
    slopes = np.stack([(errors(at + _STEP * axis) - now) / _STEP for axis in np.eye(2)], axis=1)
    for _ in range(_ROUNDS):
        step = np.clip(-np.linalg.lstsq(slopes, now, rcond=None)[0], -1.0, 1.0)
        tried = errors(at + step)
        slopes += np.outer(tried - now - slopes @ step, step) / (step @ step)  # what the step has shown
        if tried @ tried < now @ now:
            at, now = at + step, tried
        if np.abs(step).max() < _ENOUGH:
            break
    return Price(*(float(x) for x in np.exp(at)))

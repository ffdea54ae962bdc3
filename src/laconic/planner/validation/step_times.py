"""Published step times against predictions: the fit, the errors, the regret of choosing a method, and the order."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from laconic.planner.validation.published_steps import UNEXPLAINED, Cell, Experiments, first_guess, predict
from laconic.schedule.exchange_methods import METHODS, simplest
from laconic.values.price import Price

_SIGNIFICANT = 3.0  # standard deviations of the difference
_STEP, _ROUNDS, _ENOUGH = 0.02, 8, 0.1  # steps of the fit in logarithms; the minimum is flat


@dataclass(frozen=True)
class NetworkResult:
    """The measured and predicted throughputs of all methods for one model and number of GPUs on one network."""

    model: str
    gpus: int
    measured: Mapping[str, float]
    deviations: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def chosen(self) -> str:
        """The simplest of the methods that are predicted to be as fast as the fastest."""
        return simplest({method: 1 / rate for method, rate in self.predicted.items()})

    @property
    def best(self) -> str:
        return max(self.measured, key=self.measured.__getitem__)

    def regret(self, method: str) -> float:
        """Return how far a method's measured throughput lies below the best one, as a share of the best."""
        return 1 - self.measured[method] / self.measured[self.best]


@dataclass(frozen=True)
class Pair:
    """Two methods whose measured throughputs differ significantly, and whether the prediction has the right order."""

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
    """The validation on one network: the fitted price of a hop between hosts, and the prediction for each cell."""

    network: str
    between: Price
    predictions: tuple[tuple[Cell, float], ...]

    @property
    def errors(self) -> list[tuple[Cell, float]]:
        return [(cell, predicted / cell.measured - 1) for cell, predicted in self.predictions]

    @property
    def mean_error(self) -> float:
        """The mean absolute relative error of throughput over the cells whose measurement is explained."""
        return statistics.fmean(abs(error) for cell, error in self.errors if cell.explained)

    @cached_property
    def results(self) -> list[NetworkResult]:
        """The results grouped by model and number of GPUs."""
        found = []
        for model, gpus in dict.fromkeys((cell.model, cell.gpus) for cell, _ in self.predictions):
            own = [(c, p) for c, p in self.predictions if (c.model, c.gpus) == (model, gpus)]
            measured = {cell.method: cell.measured for cell, _ in own}
            deviations = {cell.method: cell.deviation for cell, _ in own}
            found.append(NetworkResult(model, gpus, measured, deviations, {cell.method: p for cell, p in own}))
        return found

    @property
    def regrets(self) -> list[float]:
        """The regret of choosing by prediction, for each model and number of GPUs."""
        return [result.regret(result.chosen) for result in self.results]

    def constant_regret(self, method: str) -> float:
        """Return the mean regret of choosing the same method everywhere."""
        return statistics.fmean(result.regret(method) for result in self.results)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were measured on this network, the simplest first."""
        measured = {cell.method for cell, _ in self.predictions}
        return tuple(method for method in METHODS if method in measured)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Pairs of methods whose throughputs differ by more than three standard deviations of their difference.

        That deviation is the root of the sum of both squared deviations.
        """
        found = []
        for result in self.results:
            for pair in itertools.combinations(result.measured, 2):
                slower, faster = sorted(pair, key=result.measured.__getitem__)
                by = result.measured[faster] - result.measured[slower]
                if by > _SIGNIFICANT * math.hypot(*(result.deviations[method] for method in pair)):
                    right = result.predicted[faster] > result.predicted[slower]
                    found.append(Pair(result.model, result.gpus, faster, slower, by / result.measured[faster], right))
        return found

    def share_right(self, explained: bool = False) -> float:
        """Return the share of pairs (if `explained`, without unexplained ones) predicted in the measured order.

        It is 1 where no two methods differ enough to be ordered.
        """
        right = [pair.right for pair in self.pairs if pair.explained or not explained]
        return statistics.fmean(right) if right else 1.0


def validate(experiments: Experiments, network: str) -> Validation:
    """Fit the start-up and bandwidth of a network to its own cells, and predict all of them."""
    between = fit(experiments, network)
    return Validation(
        network, between, tuple((c, predict(c, experiments.facts, between)) for c in experiments.of(network))
    )


def fit(experiments: Experiments, network: str) -> Price:
    """Return the start-up and bandwidth that minimise squared relative errors, by Broyden's method in logarithms.

    Cells of a single host depend on neither, so they are left out; so are unexplained measurements.
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
        slopes += np.outer(tried - now - slopes @ step, step) / (step @ step)  # Broyden's update of the slopes
        if tried @ tried < now @ now:
            at, now = at + step, tried
        if np.abs(step).max() < _ENOUGH:
            break
    return Price(*(float(x) for x in np.exp(at)))

"""The protocol of a fair comparison: equal tuning for every row, on seeds that are not reported.

Each row gets seven learning rates, a factor two apart around the script's own, and up to three values of its main knob.
A value's learning rate is the one with the best metric at the end; the grid grows while that lies at an end, at most
twice. Between the values of a knob the time to the target decides, because that is the purpose of a row; the target is
what the tuned reference reaches at its end with the same seed. For the reference itself it is what the worst of its own
values reaches, so that a knob that changes no mathematics is chosen by speed.

Trials are run by a function that the caller gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laconic.experiments.settings import CompareError, alternatives
from laconic.reading import Source
from laconic.values.metric_direction import as_good, falls_by_course

RATES = 7
EXTENSIONS = 2
RIVALS = (
    "torch:ddp(bucket_cap_mb={1|5|25})",
    "torch:ddp16",
    "torch:accumulate(steps={2|4|8})",
    "torch:powersgd(rank={1|2|4}, bucket_cap_mb=1000)",  # messages of several buckets overtake each other on gloo
    "accelerate:local_sgd(period={4|8|16})",
    "torchft:diloco(period={4|8|16})",
)
"""The rivals that the protocol adds to every comparison, with the values of the knob that is tuned."""


@dataclass(frozen=True)
class Trial:
    """One run of the tuning: a strategy with a learning rate and a seed."""

    strategy: str
    learning_rate: float
    seed: int


@dataclass(frozen=True)
class Curve:
    """A metric as a run logged it: (seconds, value) in order; empty when the run failed."""

    points: tuple[tuple[float, float], ...]

    @property
    def final(self) -> float:
        return self.points[-1][1] if self.points else math.nan

    def falls(self, metric: str) -> bool:
        """Return whether less of this metric is better: by its name, or by the course it took."""
        found = falls_by_course(metric, (value for _, value in self.points))
        if found is None:
            raise CompareError(
                f"whether less of {metric!r} is better, neither its name nor the first trial says, which logged it "
                f"fewer than two times with different finite values: log it more often, or under a name such as "
                f"{metric}_loss or {metric}_score."
            )
        return found

    def seconds_to(self, value: float, falls: bool) -> float:
        """Return when the metric was first as good as a value; infinity if never."""
        return next((s for s, v in self.points if as_good(v, value, falls)), math.inf)


Run = Callable[[Trial], Curve]
"""A function that runs a trial and returns the curve of its metric."""


@dataclass(frozen=True)
class TunedChoice:
    """A tuned row: the chosen strategy and learning rate, and the mean of every setting that was tried."""

    strategy: str
    learning_rate: float
    at_an_end: bool  # the best learning rate was the grid's last even after it had grown
    finals: Mapping[int, float]  # by choosing seed
    tried: Mapping[str, Mapping[float, float]]  # strategy, learning rate: mean of the metric at the end


@dataclass(frozen=True)
class _Tuned:
    """A strategy at its best learning rate, with the curves there and the means at all learning rates."""

    strategy: str
    learning_rate: float
    at_an_end: bool
    curves: Mapping[int, Curve]
    means: Mapping[float, float]


def tune(
    text: str, rate: float, seeds: Sequence[int], run: Run, falls: bool, targets: Mapping[int, float] | None = None
) -> TunedChoice:
    """Tune one row on the choosing seeds; without targets the row is the reference, which sets them."""
    candidates = [_tune_rate(strategy, rate, seeds, run, falls) for strategy in alternatives(text)]
    if targets is None:
        worst = max if falls else min
        targets = {seed: worst(c.curves[seed].final for c in candidates) for seed in seeds}
    aims = targets

    def order(candidate: _Tuned) -> tuple[float, float]:
        times = [candidate.curves[seed].seconds_to(aims[seed], falls) for seed in seeds]
        return sum(times) / len(times), _badness(candidate.means[candidate.learning_rate], falls)

    best = min(candidates, key=order)
    finals = {seed: curve.final for seed, curve in best.curves.items()}
    tried = {candidate.strategy: candidate.means for candidate in candidates}
    return TunedChoice(best.strategy, best.learning_rate, best.at_an_end, finals, tried)


def _tune_rate(strategy: str, rate: float, seeds: Sequence[int], run: Run, falls: bool) -> _Tuned:
    curves: dict[int, dict[int, Curve]] = {}

    def badness(exponent: int) -> float:
        if exponent not in curves:
            curves[exponent] = {seed: run(Trial(strategy, rate * 2.0**exponent, seed)) for seed in seeds}
        return _badness(_mean_final(curves[exponent]), falls)

    exponents = list(range(-(RATES // 2), RATES // 2 + 1))
    best = min(exponents, key=badness)
    for _ in range(EXTENSIONS):
        if best not in (exponents[0], exponents[-1]):
            break
        exponents = [exponents[0] - 1, *exponents] if best == exponents[0] else [*exponents, exponents[-1] + 1]
        best = min(exponents, key=badness)
    if math.isinf(badness(best)):
        raise CompareError(f"`{strategy}` never logged a finite metric at any learning rate: look at its logs.")
    means = {rate * 2.0**e: _mean_final(curves[e]) for e in exponents}
    return _Tuned(strategy, rate * 2.0**best, best in (exponents[0], exponents[-1]), curves[best], means)


def _mean_final(curves: Mapping[int, Curve]) -> float:
    return sum(curve.final for curve in curves.values()) / len(curves)


def _badness(value: float, falls: bool) -> float:
    """Return a value of which less is better; a metric that is not finite is the worst."""
    return (value if falls else -value) if math.isfinite(value) else math.inf


def least_trials(texts: Sequence[str], seeds: Sequence[int]) -> int:
    """Return how many trials the tuning takes if no grid of learning rates grows."""
    return sum(len(alternatives(text)) for text in texts) * RATES * len(seeds)


@dataclass(frozen=True)
class _KeptTrial:
    """A line of the file of trials."""

    trial: Trial
    points: tuple[tuple[float, float], ...]


class CachedTrials:
    """A function that runs trials and caches their curves, a line of a file each, so that no trial runs twice.

    `on_trial` is called before each trial with the trial and whether its curve is in the cache.
    """

    def __init__(
        self, path: Path, run: Run, on_trial: Callable[[Trial, bool], None] = lambda trial, known: None
    ) -> None:
        self._path, self._run, self._on_trial = path, run, on_trial
        self._known: dict[Trial, Curve] = {}
        source = Source(path, "list of trials", "remove the damaged line, and that trial runs again.", CompareError)
        whole, _, _cut_off = (source.text() if path.exists() else "").rpartition("\n")
        for line in whole.splitlines():
            kept = source.value(source.json(line), _KeptTrial)
            self._known[kept.trial] = Curve(kept.points)

    def __call__(self, trial: Trial) -> Curve:
        self._on_trial(trial, trial in self._known)
        if trial not in self._known:
            curve = self._known[trial] = self._run(trial)
            if not curve.points:  # it failed: the next time may be better
                return curve
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(_KeptTrial(trial, curve.points))) + "\n")
        return self._known[trial]

"""Validation on Pollux's training curves: steps to a target for a batch size whose own run is left out."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from laconic.planner.noise import fit, gain, noise_from_gain, steps_for
from laconic.planner.values import PlanError
from laconic.reading import Finite, Natural, NotNegative, Positive, Source

FOLDER = Path("pollux") / "traces"
SHARES = (0.8, 0.9, 0.95, 1.0)  # of the way from the first evaluation to the best that every batch size reaches
STATED = 0.9
TOLERANCE = 0.1  # or one evaluation, if that is longer
_FEWEST, _MOST = 1e-9, 1e9  # bounds of the noise scale over the base batch, so that it has a logarithm


@dataclass(frozen=True)
class Run:
    """The evaluations of one batch size's run, with Pollux's own columns (`progress`: steps of the smallest batch)."""

    batch: int
    steps: tuple[float, ...]
    metrics: tuple[float, ...]
    progress: tuple[float, ...]
    squares: tuple[float, ...]  # of the gradient
    variances: tuple[float, ...]  # of the smallest batch's gradient


@dataclass(frozen=True)
class Cell:
    """One batch size that was left out: the steps at which it reached the target, and four predictions of them."""

    batch: int
    reached: float  # steps
    interval: float  # steps from the evaluation before
    law: float  # from the other batch sizes' steps alone
    noise: float  # progress and noise of the neighbouring batch sizes
    own_noise: float  # the same progress, with the noise columns of the run that is left out
    known: float  # its own progress, the neighbours' noise: the noise model without the luck of evaluations

    def error(self, by: str) -> float:
        """Return the absolute relative error of one prediction: law, noise, own_noise or known."""
        predicted: float = getattr(self, by)
        return abs(predicted / self.reached - 1)

    def in_tolerances(self, by: str) -> float:
        """Return the error in units of the tolerance: the larger of 10 % and one evaluation."""
        return self.error(by) * self.reached / max(TOLERANCE * self.reached, self.interval)


@dataclass(frozen=True)
class Target:
    """One target: its share of the metric's total improvement, its value, and a cell for each batch size."""

    share: float
    value: float
    cells: tuple[Cell, ...]

    def median_error(self, by: str = "law") -> float:
        return statistics.median(cell.error(by) for cell in self.cells)

    def mean_error(self, by: str = "law") -> float:
        return statistics.fmean(cell.error(by) for cell in self.cells)

    def largest_error(self, by: str = "law") -> float:
        return max(cell.error(by) for cell in self.cells)

    def in_tolerances(self, by: str = "law") -> float:
        """Return the median error in units of the tolerance: the larger of 10 % and one evaluation."""
        return statistics.median(cell.in_tolerances(by) for cell in self.cells)


@dataclass(frozen=True)
class ModelErrors:
    """The errors for one model, by target."""

    model: str
    rises: bool  # whether a better metric is a higher one
    targets: Mapping[float, Target]

    @property
    def stated(self) -> Target:
        return self.targets[STATED]


def validate(data: Path) -> list[ModelErrors]:
    """Return the errors for all models in the folder of published measurements."""
    return [of_model(model, runs) for model, runs in read(data / FOLDER).items()]


def of_model(model: str, runs: Mapping[int, Run]) -> ModelErrors:
    """Return the errors for one model from its runs by batch size."""
    if len(runs) < 3:
        raise PlanError(f"{model} has runs of {len(runs)} batch sizes: leaving one out takes three or more")
    firsts, lasts = ([run.metrics[k] for run in runs.values()] for k in (0, -1))
    rises = statistics.median(lasts) > statistics.median(firsts)
    return ModelErrors(model, rises, {share: _target(runs, rises, share) for share in SHARES})


def read(folder: Path) -> dict[str, dict[int, Run]]:
    """Read the runs by model and batch size from files `<model>/validation-<batch>.csv`."""
    found: dict[str, dict[int, Run]] = {}
    for path in folder.glob("*/validation-*.csv"):
        source = Source(
            path, "validation curve of Pollux's", "copy it again from the artifact (`laconic data`)", PlanError
        )
        batch = source.value(path.stem.removeprefix("validation-"), Natural, lax=True)
        run = Run(batch, *_columns(source.rows(source.text(), _Evaluation)))
        if any(b <= a for column in (run.steps, run.progress) for a, b in pairwise((0.0, *column))):
            raise source.refused("its iterations and its progress do not rise from row to row")
        found.setdefault(path.parent.name, {})[batch] = run
    if not found:
        raise PlanError(f"{folder} is not there or has no <model>/validation-<batch>.csv: see `laconic data`")
    return {model: dict(sorted(found[model].items())) for model in sorted(found)}


@dataclass(frozen=True)
class _Evaluation:
    """A row of a validation curve."""

    iteration: Positive
    metric: Finite
    progress: Positive
    grad_sqr: NotNegative
    grad_var: NotNegative


def _columns(rows: Sequence[_Evaluation]) -> tuple[tuple[float, ...], ...]:
    names = ("iteration", "metric", "progress", "grad_sqr", "grad_var")
    return tuple(tuple(getattr(row, name) for row in rows) for name in names)


def _target(runs: Mapping[int, Run], rises: bool, share: float) -> Target:
    sign = 1 if rises else -1
    first = statistics.median(sign * run.metrics[0] for run in runs.values())
    worst = min(max(sign * metric for metric in run.metrics) for run in runs.values())
    value = worst if share == 1 else first + share * (worst - first)
    at = {
        batch: next(k for k, metric in enumerate(run.metrics) if sign * metric >= value) for batch, run in runs.items()
    }
    return Target(share, sign * value, tuple(_cell(runs, at, batch) for batch in runs))


def _cell(runs: Mapping[int, Run], at: Mapping[int, int], batch: int) -> Cell:
    own, others = runs[batch], [b for b in runs if b != batch]
    base = min(runs)
    reached = own.steps[at[batch]]
    interval = reached - (own.steps[at[batch] - 1] if at[batch] else 0)
    near = sorted(others, key=lambda b: abs(math.log(b / batch)))[:2]
    progress = math.exp(statistics.fmean(math.log(runs[b].progress[at[b]]) for b in near))
    noise = neighbours_noise([runs[b] for b in others if b != base], batch, base)
    return Cell(
        batch,
        reached,
        interval,
        law=fit({b: runs[b].steps[at[b]] for b in others}).steps(batch),
        noise=_steps(noise, progress, batch, base),
        own_noise=_steps(own_columns(own, base), progress, batch, base),
        known=_steps(noise, own.progress[at[batch]], batch, base),
    )


NoisePath = list[tuple[float, float]]
"""A list of (progress, noise scale): each noise scale holds from the entry before up to its progress."""


def neighbours_noise(others: list[Run], batch: int, base: int) -> NoisePath:
    """Return the noise implied by the next smaller and larger batch's progress, interpolated by log batch."""
    batches = [run.batch for run in others]
    k = min(max(bisect_left(batches, batch), 1), len(others) - 1) if len(others) > 1 else 0
    low, high = others[max(k - 1, 0)], others[k]
    paths = [_implied(run, base) for run in (low, high)]
    span = math.log(high.batch / low.batch)
    share = min(1.0, max(0.0, math.log(batch / low.batch) / span)) if span else 0.0
    return [
        (until, math.exp((1 - share) * math.log(noise) + share * math.log(_noise_at(paths[1], until))))
        for until, noise in paths[0]
    ]


def own_columns(run: Run, base: int) -> NoisePath:
    """Return the noise from a run's own gradient columns; progress is derived from it, not read from its column."""
    found, until, before = [], 0.0, 0.0
    for steps, square, variance in zip(run.steps, run.squares, run.variances, strict=True):
        noise = base * variance / square if square > 0 else math.inf
        until += (steps - before) * gain(run.batch, noise, base)
        found.append((until, noise))
        before = steps
    return found


def _implied(run: Run, base: int) -> NoisePath:
    found, before = [], (0.0, 0.0)
    for steps, progress in zip(run.steps, run.progress, strict=True):
        worth = (progress - before[1]) / (steps - before[0])
        noise = noise_from_gain(run.batch, worth, base)
        found.append((progress, min(_MOST * base, max(_FEWEST * base, noise))))
        before = steps, progress
    return found


def _noise_at(path: NoisePath, progress: float) -> float:
    k = bisect_left(
        path, progress * (1 - 1e-3), key=lambda entry: entry[0]
    )  # evaluations come slightly after the exact progress
    return path[min(k, len(path) - 1)][1]


def _steps(path: NoisePath, progress: float, batch: int, base: int) -> float:
    """Return the steps of this batch up to a progress; beyond the path the last noise scale holds."""
    parts, before = [], 0.0
    for until, noise in [*path, (math.inf, path[-1][1])]:
        parts.append((min(until, progress) - before, noise))
        before = until
        if until >= progress:
            break
    return steps_for(parts, batch, base)

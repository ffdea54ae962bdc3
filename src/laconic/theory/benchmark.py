"""A uniform benchmark: every sentence at every number of workers and seed, treated alike, in one table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.registry import technique


@dataclass(frozen=True)
class Point:
    """A point of a run's curve: the accuracy after these iterations of a worker, bytes that it sent, and seconds."""

    iterations: int
    sent_bytes: float
    seconds: float
    accuracy: float


Train = Callable[[str, int, float, int], Sequence[Point]]
"""A function of (sentence, workers, learning rate, seed) that trains once and returns the curve."""


@dataclass(frozen=True)
class Line:
    """A line of the table: one strategy at one number of workers, with its learning rate and a curve for each seed."""

    strategy: str
    workers: int
    rate: float
    curves: tuple[tuple[Point, ...], ...]

    @property
    def finals(self) -> tuple[float, ...]:
        return tuple(curve[-1].accuracy for curve in self.curves)

    @property
    def accuracy(self) -> float:
        """The final accuracy, as the mean over seeds."""
        return statistics.fmean(self.finals)

    @property
    def spread(self) -> float:
        """The standard deviation of the final accuracy over seeds."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else math.nan

    def to(self, accuracy: float) -> Point | None:
        """Return the mean cost over seeds of reaching an accuracy, or None if a seed does not reach it."""
        found = [next((point for point in curve if point.accuracy >= accuracy), None) for curve in self.curves]
        there = [point for point in found if point is not None]
        if len(there) < len(found):
            return None
        iterations = round(statistics.fmean(point.iterations for point in there))
        sent, seconds = (statistics.fmean(getattr(p, what) for p in there) for what in ("sent_bytes", "seconds"))
        return Point(iterations, sent, seconds, accuracy)


@technique(
    "uniform_benchmark",
    axis="theory",
    paper="Tang et al., arXiv 2003.06307",
    why_no_word="It is an experiment over whole sentences, each of which it trains.",
)
def uniform_benchmark(
    train: Train,
    strategies: Sequence[str],
    workers: Sequence[int] = (4,),
    rates: Sequence[float] = (0.1,),
    seeds: Sequence[int] = (0, 1, 2),
    choosing_seeds: Sequence[int] = (1000,),
) -> list[Line]:
    """Train every strategy at every number of workers, with the same task, data order and choice of learning rates.

    The caller's `train` defines the task and runs one sentence. Each line uses the learning rate with the best accuracy
    on the choosing seeds; the other seeds are reported. `table` formats the lines. For a script, use the command
    `laconic compare`.
    """
    if set(seeds) & set(choosing_seeds) and len(rates) > 1:
        raise LaconicError("learning rates are not chosen on the seeds that are reported; take others to choose with")
    lines = []
    for count in workers:
        for strategy in strategies:
            rate = rates[0]
            if len(rates) > 1:
                ends = {r: [_end(train(strategy, count, r, seed)) for seed in choosing_seeds] for r in rates}
                rate = max(rates, key=lambda r: statistics.fmean(ends[r]))
            curves = tuple(tuple(train(strategy, count, rate, seed)) for seed in seeds)
            lines.append(Line(strategy, count, rate, curves))
    return lines


def _end(curve: Sequence[Point]) -> float:
    """Return the final accuracy, with minus infinity for a run that diverged."""
    return curve[-1].accuracy if curve and math.isfinite(curve[-1].accuracy) else -math.inf


def table(lines: Sequence[Line], target: float) -> str:
    """Return all lines as a text table, with dashes where a seed does not reach the target."""
    rows = [("strategy", "workers", "rate", "accuracy", "spread", f"to {target:g}:", "MB sent", "seconds")]
    for line in lines:
        there = line.to(target)
        reached = ("–",) * 3
        if there is not None:
            reached = (f"{there.iterations}", f"{there.sent_bytes / 1e6:.3g}", f"{there.seconds:.3g}")
        own = (line.strategy, f"{line.workers}", f"{line.rate:g}", f"{line.accuracy:.2f}", f"{line.spread:.2f}")
        rows.append((*own, *reached))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    written = [
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in rows
    ]
    return "\n".join("  ".join(row) for row in written)

"""The strategy matrix: sentences times worker counts times seeds, all treated alike, in one table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from laconic.errors import LaconicError
from laconic.registry import technique


@dataclass(frozen=True)
class Point:
    """How good a run was when: after so many iterations of a worker, bytes that it sent, and seconds."""

    iterations: int
    sent_bytes: float
    seconds: float
    accuracy: float


Train = Callable[[str, int, float, int], Sequence[Point]]
"""(sentence, workers, learning rate, seed): one training, on an engine of the caller's."""


@dataclass(frozen=True)
class Line:
    """One strategy among so many workers: its learning rate, and a curve for each seed."""

    strategy: str
    workers: int
    rate: float
    curves: tuple[tuple[Point, ...], ...]

    @property
    def finals(self) -> tuple[float, ...]:
        return tuple(curve[-1].accuracy for curve in self.curves)

    @property
    def accuracy(self) -> float:
        """At the end, in the mean over seeds."""
        return statistics.fmean(self.finals)

    @property
    def spread(self) -> float:
        """Standard deviation of it over seeds."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else math.nan

    def to(self, accuracy: float) -> Point | None:
        """What it takes until it is reached, in the mean over seeds; None where one of them does not get there."""
        found = [next((point for point in curve if point.accuracy >= accuracy), None) for curve in self.curves]
        there = [point for point in found if point is not None]
        if len(there) < len(found):
            return None
        iterations = round(statistics.fmean(point.iterations for point in there))
        sent, seconds = (statistics.fmean(getattr(p, what) for p in there) for what in ("sent_bytes", "seconds"))
        return Point(iterations, sent, seconds, accuracy)


@technique("uniform_benchmark", axis="theory", paper="Tang et al., arXiv 2003.06307")
def uniform_benchmark(
    train: Train,
    strategies: Sequence[str],
    workers: Sequence[int] = (4,),
    rates: Sequence[float] = (0.1,),
    seeds: Sequence[int] = (0, 1, 2),
    choosing_seeds: Sequence[int] = (1000,),
) -> list[Line]:
    """Every strategy at every number of workers, with the same task, data order and learning rates to choose from.

    Whoever calls brings the task and the engine: `train` runs one sentence. The rate is that of the best accuracy on
    the choosing seeds, for each line by itself; the other seeds are reported. `table` writes the lines. The command for
    a script of one's own is `laconic compare`.
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
    """A run that went astray is the worst."""
    return curve[-1].accuracy if curve and math.isfinite(curve[-1].accuracy) else -math.inf


def table(lines: Sequence[Line], target: float) -> str:
    """All lines as text; what a target takes is dashes where a seed does not reach it."""
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

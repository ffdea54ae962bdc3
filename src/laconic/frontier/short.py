"""Do short trainings predict long ones? Their rank correlation, and what choosing by the short ones would cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

import numpy as np

from laconic.experiments.statistics import spearman
from laconic.frontier.methods import Method
from laconic.frontier.tables import Table, within

NEAR = 0.05  # the gap to DDP up to which methods are compared: the others are easily told apart
FEWEST = 4  # methods of which a rank correlation says something


@dataclass(frozen=True)
class ShortRuns:
    """Short trainings, each with its own schedule, beside the full ones of the same methods."""

    share: float  # of a full run's steps
    methods: int
    correlation: float | None  # Spearman's; None where fewer than four methods were run both ways
    chosen: Method  # by the short runs
    best: Method
    regret: float  # loss of the chosen method's full run over the best one's, less 1

    @property
    def ranked(self) -> str:
        """How well the short runs rank the methods, in words."""
        if self.correlation is None:
            return "they are too few for a rank correlation"
        return f"the rank correlation is {self.correlation:.2f}"


def short_runs(table: Table) -> Iterator[ShortRuns]:
    """Yield, for each length of the short runs, how well they rank the methods that end within 5 % of DDP.

    Runs that choose a rate are short runs too, at the rate that they choose.
    """
    near = {line.method: line for line in table.lines if line.method.is_plain or within(line, NEAR)}
    by_share: dict[float, dict[Method, list[float]]] = {}
    for run in table.runs:
        method = Method.of(run)
        if run.purpose in ("short", "rate") and method in near and run.lr == near[method].tuned.lr:
            by_share.setdefault(run.share, {}).setdefault(method, []).append(run.final)
    for share, found in sorted(by_share.items()):
        methods = [method for method in found if isfinite(near[method].loss)]
        if len(methods) < 2:
            continue
        short, full = [fmean(found[m]) for m in methods], [near[m].loss for m in methods]
        chosen, best = methods[int(np.argmin(short))], methods[int(np.argmin(full))]
        correlation = spearman(short, full) if len(methods) >= FEWEST else None
        yield ShortRuns(share, len(methods), correlation, chosen, best, near[chosen].loss / near[best].loss - 1)

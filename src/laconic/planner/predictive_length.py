"""The shortest training that was shown to predict how long ones end, by short and long runs that were measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from laconic.experiments.statistics import spearman
from laconic.planner import runs
from laconic.planner.risk import Training

NEAR = 0.05  # strategies further above `bsp` than that need no long run to be told apart
SHORT = ("short", "rate")  # purposes of runs that are shorter than those reported, with a schedule of their own
LEAST_STRATEGIES = 4
LEAST_CORRELATION = 0.8
MOST_REGRET = 0.01


@dataclass(frozen=True)
class PredictiveLength:
    """A number of steps after which the order of strategies was that at the end.

    `correlation` is Spearman's between the losses of short runs, with a schedule of their own, and of full ones;
    `regret` is how much more loss the first of the short runs ends with than the best.
    """

    steps: int
    share: float  # of the full run
    correlation: float
    regret: float
    strategies: int
    task: str


def predictive_length(training: Training, rows: Iterable[runs.Run] | None = None) -> PredictiveLength | None:
    """Return the shortest length that predicts in trainings like this one, as all longer ones that were tried do.

    Runs that choose a rate are short runs too, at the rate that they choose. Of several tasks and sizes the longest
    such length counts; None where there is one without, or nothing was measured.
    """
    found: list[PredictiveLength | None] = []
    groups: dict[tuple[object, ...], list[runs.Run]] = defaultdict(list)
    for row in runs.read() if rows is None else rows:
        like = Training(row.kind, row.optimizer, row.workers, row.parameters)
        if like.circumstances == training.circumstances and not row.skewed:
            groups[row.task, row.rung, row.parameters, row.samples_per_step].append(row)
    for group in groups.values():
        lengths = sorted({row.steps for row in group if row.purpose in SHORT}, reverse=True)
        judged = [_judged(group, steps) for steps in lengths]
        if any(length is not None for length in judged):
            found.append(_shortest(judged))
    known = [length for length in found if length is not None]
    return max(known, key=lambda length: length.steps, default=None) if len(known) == len(found) else None


def _shortest(longest_first: list[PredictiveLength | None]) -> PredictiveLength | None:
    """Return the shortest of the lengths that predict before the first one that does not."""
    shortest = None
    for length in longest_first:
        if length is None or length.correlation < LEAST_CORRELATION or length.regret > MOST_REGRET:
            break
        shortest = length
    return shortest


def _judged(group: Iterable[runs.Run], steps: int) -> PredictiveLength | None:
    """Return how well runs of so many steps predict, among strategies near `bsp`; None where there are too few."""
    rows = list(group)
    full = _means(row for row in rows if row.purpose == "report")
    rates = {(row.sentence, row.lr) for row in rows if row.purpose == "report"}
    at_rates = (row for row in rows if (row.sentence, row.lr) in rates)
    short = _means(row for row in at_rates if row.purpose in SHORT and row.steps == steps)
    plain = next((full[row.sentence] for row in rows if row.is_plain and row.sentence in full), None)
    near = [text for text in short if plain is not None and full.get(text, float("inf")) <= (1 + NEAR) * plain]
    if len(near) < LEAST_STRATEGIES:
        return None
    first = min(near, key=lambda text: short[text])
    best = min(full[text] for text in near)
    correlation = spearman([short[text] for text in near], [full[text] for text in near]) or 0.0
    share = steps / rows[0].full_steps
    return PredictiveLength(steps, share, correlation, full[first] / best - 1, len(near), rows[0].task)


def _means(rows: Iterable[runs.Run]) -> Mapping[str, float]:
    """Return the mean final loss over seeds by strategy."""
    losses: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        losses[row.sentence].append(row.final)
    return {text: statistics.fmean(values) for text, values in losses.items()}

"""Learning rates: chosen on rows that are made for it, and reported on others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from laconic.frontier.methods import Method, steps_outside
from laconic.planner.runs import Run

AT_THE_EDGE = "at the edge of the grid"
FLAT = 0.03
"""The span of the losses at all rates of a grid up to which one run each does not tell its rates apart."""


@dataclass(frozen=True)
class Tuned:
    """A method's rows at the rate that was chosen for it, and what speaks against trusting them."""

    method: Method
    lr: float
    tried: tuple[tuple[float, float], ...]  # rates in rising order with their loss; none: nothing was tried here
    reported: tuple[Run, ...]
    warnings: tuple[str, ...] = ()

    @property
    def losses(self) -> dict[int, float]:
        """The reported losses by seed."""
        return {run.seed: run.final for run in self.reported}


def tuned(method: Method, runs: Sequence[Run]) -> Tuned | None:
    """Return a method's reported rows at its best rate; None where none was reported at a rate that was chosen.

    The best rate is the one of least loss among the rows whose purpose is to choose it, and never depends on a
    reported row.
    """
    reported = [run for run in runs if run.purpose == "report"]
    choosing = [run for run in runs if run.purpose == "rate"]
    tried = _by_rate(choosing)
    rates = sorted({run.lr for run in reported})
    if not rates:
        return None
    ended = [entry for entry in tried if isfinite(entry[1])]
    if not ended and len(rates) > 1:
        return None
    best = min(ended, key=lambda entry: entry[1])[0] if ended else rates[0]
    warnings = list(_about_rate(best, tried))
    if best not in rates:
        if len(rates) > 1:
            return None
        warnings.append(f"reported at {rates[0]:g}, though {best:g} was best of the rates tried")
        best = rates[0]
    if seeds := {run.seed for run in choosing} & {run.seed for run in reported}:
        warnings.append(f"seed {', '.join(map(str, sorted(seeds)))} chose the rate and is reported")
    shown = tuple(sorted((run for run in reported if run.lr == best), key=lambda run: run.seed))
    warnings += _about_steps(method, shown)
    return Tuned(method, best, tuple(tried), shown, tuple(warnings))


def chosen_loss(found: Tuned) -> float:
    """Return the loss by which a method may be chosen among its own settings; infinite where no rate was tried."""
    return min((loss for _, loss in found.tried), default=float("inf"))


def _by_rate(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Return the rates with the mean loss of their longest rows."""
    longest = max((run.steps for run in runs), default=0)
    found: dict[float, list[float]] = {}
    for run in runs:
        if run.steps == longest:
            found.setdefault(run.lr, []).append(run.final)
    return [(lr, fmean(losses)) for lr, losses in sorted(found.items())]


def _about_rate(best: float, tried: Sequence[tuple[float, float]]) -> Iterator[str]:
    if not tried:
        yield "its rate was not chosen on this rung"
    elif not any(isfinite(loss) for _, loss in tried):
        yield "it diverged at every rate that was tried"
    elif len(tried) == 1:
        yield "only one rate was tried"
    elif max(losses := [loss for _, loss in tried]) <= (1 + FLAT) * min(losses):
        yield f"runs at all its rates end within {100 * FLAT:g} %: that {best:g} was best may be chance"
    elif best in (tried[0][0], tried[-1][0]):
        yield f"the best rate, {best:g}, is {AT_THE_EDGE}"


def _about_steps(method: Method, reported: Sequence[Run]) -> Iterator[str]:
    for steps in sorted({run.steps for run in reported}):
        if outside := steps_outside(method.strategy, steps):
            yield f"{outside} of {steps} steps are after the last whole period"

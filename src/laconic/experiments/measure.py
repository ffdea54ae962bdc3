"""The numbers of a comparison's table from outcomes, each with its ratio to the baseline's, paired by block or seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from laconic.experiments.outcome import RunOutcome
from laconic.experiments.statistics import Spread, bootstrap_ratio, mean_and_range, quartiles, ratios

_CLEAR_SHARE = 0.01
"""The share of its step below which the baseline's exposed communication cannot be distinguished from noise."""
_NO_TIME_SECONDS = 1e-9
"""Computing that takes less than this takes no time: virtual workers without compute times only wait for each other."""


@dataclass(frozen=True)
class RowOutcomes:
    """The outcomes that one row is measured by: its own, the baseline's and the compute-only one, run side by side."""

    own: RunOutcome
    baseline: RunOutcome
    computing: RunOutcome

    def without_failed(self) -> RowOutcomes:
        """Return these outcomes with nothing in place of a baseline or compute-only run that failed: what it did before
        it failed is no measure for others."""
        baseline, computing = (RunOutcome() if one.error else one for one in (self.baseline, self.computing))
        return replace(self, baseline=baseline, computing=computing)


@dataclass(frozen=True)
class Quantity:
    """A number with its spread, and the ratio to the baseline's number with the spread of that ratio."""

    value: Spread
    ratio: Spread | None = None


@dataclass(frozen=True)
class Line:
    """One line of the table: the numbers of a row; what could not be measured is None."""

    name: str
    step_seconds: Quantity | None = None
    computing_seconds: Spread | None = None
    exposed_seconds: Quantity | None = None
    sent_bytes: Quantity | None = None
    received_bytes: Quantity | None = None
    waited_seconds: Spread | None = None
    seconds_to_target: Quantity | None = None
    bytes_to_target: Quantity | None = None
    reached: int = 0  # in how many of the runs
    runs: int = 1
    final: Mapping[str, Quantity] = field(default_factory=dict)
    counter: str | None = None
    blocks: int = 0
    error: str | None = None
    logged: tuple[str, ...] = ()  # the names of all metrics that it logged; a table that was written has them no more


def line_of(
    name: str,
    by_seed: Mapping[int, RowOutcomes],
    target: Callable[[int], tuple[str, float] | None],
    falls: bool | None = None,
) -> Line:
    """Return a row's line from its runs by seed: spreads are quartiles over blocks of one run, else ranges over seeds.

    `falls` says whether less of the target's metric is better; with None the course of each run decides it.
    """
    by_seed = {seed: outcomes.without_failed() for seed, outcomes in by_seed.items()}
    first = next(iter(by_seed.values()))
    errors = [outcomes.own.error for outcomes in by_seed.values() if outcomes.own.error is not None]
    reached = {seed: _at_target(outcomes.own, target(seed), falls) for seed, outcomes in by_seed.items()}
    base = {seed: _at_target(outcomes.baseline, target(seed), falls) for seed, outcomes in by_seed.items()}
    to_target: list[Quantity | None] = []
    for measure in (0, 1):
        ours = {seed: at[measure] for seed, at in reached.items() if at is not None}
        theirs = {seed: at[measure] for seed, at in base.items() if at is not None}
        whole = len(ours) == len(by_seed)  # a mean over the lucky seeds alone would flatter
        to_target.append(_over_runs(ours, theirs) if whole else None)
    waited = [_waited(outcomes.own) for outcomes in by_seed.values()]
    return Line(
        name=name,
        step_seconds=_step_seconds(by_seed),
        computing_seconds=_plain([_median_step(outcomes.computing) for outcomes in by_seed.values()]),
        exposed_seconds=_exposed_seconds(by_seed),
        sent_bytes=_bytes(by_seed, "sent_bytes"),
        received_bytes=_bytes(by_seed, "received_bytes"),
        waited_seconds=_plain(waited),
        seconds_to_target=to_target[0],
        bytes_to_target=to_target[1],
        reached=sum(at is not None for at in reached.values()),
        runs=len(by_seed),
        final={metric: q for metric in first.own.metrics() if (q := _final(by_seed, metric)) is not None},
        logged=tuple(first.own.metrics()),
        counter=first.own.counter,
        blocks=min(len(outcomes.own.timed()) for outcomes in by_seed.values()),
        error=errors[0] if errors else None,
    )


def regime(baseline: Line) -> float | None:
    """Return r, the exposed communication of the baseline divided by its computation, or None where it is unknown."""
    if baseline.error is not None or baseline.exposed_seconds is None or baseline.computing_seconds is None:
        return None
    exposed, computing = baseline.exposed_seconds.value.middle, baseline.computing_seconds.middle
    return exposed / computing if computing > _NO_TIME_SECONDS * max(1.0, abs(exposed)) else None


def _step_seconds(by_seed: Mapping[int, RowOutcomes]) -> Quantity | None:
    if len(by_seed) == 1:
        (outcomes,) = by_seed.values()
        ours, theirs = _steps(outcomes.own), _steps(outcomes.baseline)
        spread = quartiles(list(ours.values()))
        return None if spread is None else Quantity(spread, ratios(ours, theirs))
    return _over_runs(
        _each(by_seed, lambda outcomes: _median_step(outcomes.own)),
        _each(by_seed, lambda outcomes: _median_step(outcomes.baseline)),
    )


def _exposed_seconds(by_seed: Mapping[int, RowOutcomes]) -> Quantity | None:
    """Return exposed communication, without a ratio where the baseline has almost none: that would divide by noise."""
    theirs = _each(by_seed, _exposed_of_baseline)
    steps = _each(by_seed, lambda outcomes: _median_step(outcomes.baseline))
    made = _over_runs(_each(by_seed, _exposed), theirs)
    clear = sum(theirs.values()) > _CLEAR_SHARE * sum(steps.values())
    return made if made is None or clear else Quantity(made.value)


def _bytes(by_seed: Mapping[int, RowOutcomes], name: str) -> Quantity | None:
    def per_step(outcome: RunOutcome) -> float | None:
        """Return the mean: bytes have no noise, unlike times, and a rule may send in some blocks only."""
        blocks = [block for block in outcome.timed().values() if getattr(block, name) is not None]
        return sum(getattr(b, name) for b in blocks) / sum(b.steps for b in blocks) if blocks else None

    return _over_runs(
        _each(by_seed, lambda outcomes: per_step(outcomes.own)),
        _each(by_seed, lambda outcomes: per_step(outcomes.baseline)),
    )


def _final(by_seed: Mapping[int, RowOutcomes], metric: str) -> Quantity | None:
    return _over_runs(
        _each(by_seed, lambda outcomes: outcomes.own.final(metric)),
        _each(by_seed, lambda outcomes: outcomes.baseline.final(metric)),
    )


def _over_runs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Quantity | None:
    value = mean_and_range(list(ours.values()))
    return None if value is None else Quantity(value, bootstrap_ratio(ours, theirs))


def _each(by_seed: Mapping[int, RowOutcomes], measure: Callable[[RowOutcomes], float | None]) -> dict[int, float]:
    return {seed: value for seed, outcomes in by_seed.items() if (value := measure(outcomes)) is not None}


def _plain(values: Sequence[float | None]) -> Spread | None:
    return mean_and_range([value for value in values if value is not None])


def _steps(outcome: RunOutcome) -> dict[int, float]:
    return {number: block.step_seconds for number, block in outcome.timed().items()}


def _median_step(outcome: RunOutcome) -> float | None:
    steps = _steps(outcome)
    return median(steps.values()) if steps else None


def _exposed(outcomes: RowOutcomes) -> float | None:
    return _beyond_computing(outcomes.own, outcomes.computing)


def _exposed_of_baseline(outcomes: RowOutcomes) -> float | None:
    return _beyond_computing(outcomes.baseline, outcomes.computing)


def _beyond_computing(outcome: RunOutcome, computing: RunOutcome) -> float | None:
    """Return the median over blocks of what a step takes beyond the compute-only step of the same round."""
    alone = _steps(computing)
    found = [seconds - alone[number] for number, seconds in _steps(outcome).items() if number in alone]
    return median(found) if found else None


def _waited(outcome: RunOutcome) -> float | None:
    """Return the seconds per step that a worker waited for messages, as the engine itself counted them."""
    steps = sum(block.steps for block in outcome.blocks)
    return None if outcome.waited_seconds is None or not steps else outcome.waited_seconds / steps


def _at_target(outcome: RunOutcome, target: tuple[str, float] | None, falls: bool | None) -> tuple[float, float] | None:
    """Return (seconds, bytes) until the target was reached; bytes are NaN where they are not counted."""
    at = None if target is None else outcome.reach(*target, falls)
    return None if at is None else (at.seconds, float("nan") if at.total_bytes is None else at.total_bytes)

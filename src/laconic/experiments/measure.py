"""From outcomes to the numbers of a table: each with its ratio to the baseline's, paired by block or by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from laconic.experiments.outcome import Outcome
from laconic.experiments.statistics import Spread, bootstrap_ratio, mean_and_range, quartiles, ratios

_CLEAR_SHARE = 0.01
"""Of its step: exposed communication below this is not told from none."""


@dataclass(frozen=True)
class Trio:
    """What one row is measured against: its own run, the baseline's and the one without talking, side by side."""

    own: Outcome
    baseline: Outcome
    computing: Outcome


@dataclass(frozen=True)
class Quantity:
    """A number with its spread, and its ratio to the baseline's with the ratio's own."""

    value: Spread
    ratio: Spread | None = None


@dataclass(frozen=True)
class Line:
    """One row of the table; what could not be measured is None."""

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


def line_of(
    name: str,
    trios: Mapping[int, Trio],
    target: Callable[[int], tuple[str, float] | None],
    falls: bool | None = None,
) -> Line:
    """A row from its runs, by seed. With one run, spreads are quartiles over blocks; with several, over seeds.

    `falls`: less of the target's metric is better; None: each run itself says it.
    """
    first = next(iter(trios.values()))
    errors = [trio.own.error for trio in trios.values() if trio.own.error is not None]
    reached = {seed: _at_target(trio.own, target(seed), falls) for seed, trio in trios.items()}
    base = {seed: _at_target(trio.baseline, target(seed), falls) for seed, trio in trios.items()}
    to_target: list[Quantity | None] = []
    for measure in (0, 1):
        ours = {seed: at[measure] for seed, at in reached.items() if at is not None}
        theirs = {seed: at[measure] for seed, at in base.items() if at is not None}
        whole = len(ours) == len(trios)  # a mean over the lucky seeds alone would flatter
        to_target.append(_over_runs(ours, theirs) if whole else None)
    waited = [_waited(trio.own) for trio in trios.values()]
    return Line(
        name=name,
        step_seconds=_step_seconds(trios),
        computing_seconds=_plain([_median_step(trio.computing) for trio in trios.values()]),
        exposed_seconds=_exposed_seconds(trios),
        sent_bytes=_bytes(trios, "sent_bytes"),
        received_bytes=_bytes(trios, "received_bytes"),
        waited_seconds=_plain(waited),
        seconds_to_target=to_target[0],
        bytes_to_target=to_target[1],
        reached=sum(at is not None for at in reached.values()),
        runs=len(trios),
        final={metric: q for metric in first.own.metrics() if (q := _final(trios, metric)) is not None},
        counter=first.own.counter,
        blocks=min(len(trio.own.timed()) for trio in trios.values()),
        error=errors[0] if errors else None,
    )


def _step_seconds(trios: Mapping[int, Trio]) -> Quantity | None:
    if len(trios) == 1:
        (trio,) = trios.values()
        ours, theirs = _steps(trio.own), _steps(trio.baseline)
        spread = quartiles(list(ours.values()))
        return None if spread is None else Quantity(spread, ratios(ours, theirs))
    return _over_runs(
        _each(trios, lambda trio: _median_step(trio.own)), _each(trios, lambda trio: _median_step(trio.baseline))
    )


def _exposed_seconds(trios: Mapping[int, Trio]) -> Quantity | None:
    """No ratio where the baseline talks about as fast as it computes alone: that would divide by noise."""
    theirs = _each(trios, _exposed_of_baseline)
    steps = _each(trios, lambda trio: _median_step(trio.baseline))
    made = _over_runs(_each(trios, _exposed), theirs)
    clear = sum(theirs.values()) > _CLEAR_SHARE * sum(steps.values())
    return made if made is None or clear else Quantity(made.value)


def _bytes(trios: Mapping[int, Trio], name: str) -> Quantity | None:
    def per_step(outcome: Outcome) -> float | None:
        found = [getattr(b, name) / b.steps for b in outcome.timed().values() if getattr(b, name) is not None]
        return median(found) if found else None

    return _over_runs(_each(trios, lambda trio: per_step(trio.own)), _each(trios, lambda trio: per_step(trio.baseline)))


def _final(trios: Mapping[int, Trio], metric: str) -> Quantity | None:
    return _over_runs(
        _each(trios, lambda trio: trio.own.final(metric)), _each(trios, lambda trio: trio.baseline.final(metric))
    )


def _over_runs(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Quantity | None:
    value = mean_and_range(list(ours.values()))
    return None if value is None else Quantity(value, bootstrap_ratio(ours, theirs))


def _each(trios: Mapping[int, Trio], measure: Callable[[Trio], float | None]) -> dict[int, float]:
    return {seed: value for seed, trio in trios.items() if (value := measure(trio)) is not None}


def _plain(values: Sequence[float | None]) -> Spread | None:
    return mean_and_range([value for value in values if value is not None])


def _steps(outcome: Outcome) -> dict[int, float]:
    return {number: block.step_seconds for number, block in outcome.timed().items()}


def _median_step(outcome: Outcome) -> float | None:
    steps = _steps(outcome)
    return median(steps.values()) if steps else None


def _exposed(trio: Trio) -> float | None:
    return _beyond_computing(trio.own, trio.computing)


def _exposed_of_baseline(trio: Trio) -> float | None:
    return _beyond_computing(trio.baseline, trio.computing)


def _beyond_computing(outcome: Outcome, computing: Outcome) -> float | None:
    """The median over blocks of what a step takes beyond the same round's step without talking."""
    alone = _steps(computing)
    found = [seconds - alone[number] for number, seconds in _steps(outcome).items() if number in alone]
    return median(found) if found else None


def _waited(outcome: Outcome) -> float | None:
    """Seconds per step that the engine itself says a worker waited for messages."""
    steps = sum(block.steps for block in outcome.blocks)
    return None if outcome.waited_seconds is None or not steps else outcome.waited_seconds / steps


def _at_target(outcome: Outcome, target: tuple[str, float] | None, falls: bool | None) -> tuple[float, float] | None:
    """(seconds, bytes) when the target was reached; bytes are NaN where nobody counts them."""
    at = None if target is None else outcome.reach(*target, falls)
    return None if at is None else (at.seconds, float("nan") if at.total_bytes is None else at.total_bytes)

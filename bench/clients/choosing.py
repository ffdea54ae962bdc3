"""Which runs the table still needs, given the rows that it has: rates, then knobs, then what is reported.

Rates are tried in short runs, and the two best of them once more at full length, since short runs of clients whose data
differ favour lower rates than long ones do.

A function of the rows alone, so that an interrupted table goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.clients.methods import RATES, SEEDS, SILOS, TUNING, TUNING_SEED, Method, tiers


@dataclass(frozen=True)
class Size:
    """How large a table is: the clients of a population and of silos, the rounds, and the images at most."""

    clients: int = 100
    silos: int = 10
    rounds: int = 300
    images: int = 50_000


@dataclass(frozen=True)
class Run:
    """A training: of a method with this rate and knob, on this seed, over so many rounds. `purpose` is "tuning" where
    it chooses finalists among rates, or a knob, "final" where it chooses one of these rates, and "report" where it is
    shown."""

    method: str
    population: str
    share: float
    sentence: str
    rate: float
    knob: float | None
    seed: int
    rounds: int
    clients: int
    images: int
    purpose: str

    @property
    def identity(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in NAMES)

    @property
    def work(self) -> float:
        """How many clients train in it, one by one: what it costs."""
        return self.rounds * max(1, round(self.share * self.clients))


NAMES = tuple(Run.__dataclass_fields__)


def identity_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in NAMES)


def run_of(method: Method, size: Size, rate: float, knob: float | None, seed: int, purpose: str) -> Run:
    clients = size.silos if method.population == SILOS else size.clients
    images = size.images // 5 if method.population == SILOS else size.images
    share = TUNING if purpose == "tuning" else 1.0
    rounds = max(1, round(share * size.rounds * method.longer))
    sentence = method.sentence(clients, knob)
    return Run(
        method.name,
        method.population,
        method.share,
        sentence,
        rate,
        knob,
        seed,
        rounds,
        clients,
        images,
        purpose,
    )


def needed(size: Size, rows: Iterable[Mapping[str, Any]]) -> Iterator[Run]:
    """Yield the runs that are not among the rows, in the order in which they should be made: a tier's trials before
    what is reported of it, the first seed of all tiers before the second of any."""
    known = {identity_of(row): row for row in rows}
    tuned: list[tuple[Method, float, float | None]] = []
    for tier in tiers():
        chosen = []
        for method in tier:
            missing, best = _tuned(method, size, known)
            yield from missing
            if best is not None:
                chosen.append((method, *best))
        yield from _reports(chosen, size, SEEDS[0], known)
        tuned += chosen
    for seed in SEEDS[1:]:
        yield from _reports(tuned, size, seed, known)


def _reports(
    tuned: Sequence[tuple[Method, float, float | None]], size: Size, seed: int, known: Mapping[Any, Any]
) -> Iterator[Run]:
    runs = (run_of(method, size, rate, knob, seed, "report") for method, rate, knob in tuned)
    return (run for run in runs if run.identity not in known)


def _tuned(
    method: Method, size: Size, known: Mapping[Any, Mapping[str, Any]]
) -> tuple[list[Run], tuple[float, float | None] | None]:
    """Return the trials that are missing, or the best rate and knob: rates are tried at the first knob, and other knobs
    at the best rate."""
    first, rest = (method.knobs[0], method.knobs[1:]) if method.knobs else (None, ())
    rows: list[Mapping[str, Any]] = []

    def missing(rates: Iterable[float], knobs: Iterable[float | None], purpose: str) -> list[Run]:
        runs = [run_of(method, size, rate, knob, TUNING_SEED, purpose) for rate in rates for knob in knobs]
        rows.extend(known[run.identity] for run in runs if run.identity in known)
        return [run for run in runs if run.identity not in known]

    if found := missing(RATES, [first], "tuning"):
        return found, None
    if found := missing(finalists(rows), [first], "final"):
        return found, None
    rate, _ = best_of(rows, method)
    if found := missing([rate], rest, "tuning"):
        return found, None
    return [], best_of(rows, method)


def finalists(trials: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the two best rates of short trials at the same knob."""
    return [row["rate"] for row in sorted(trials, key=lambda row: -row["accuracy"])[:2]]


def best_of(rows: Iterable[Mapping[str, Any]], method: Method) -> tuple[float, float | None]:
    """Return the rate that is the best at the method's first knob, and the knob that is the best at that rate.

    - `rows`: of the method, those of its finals and of its trials. Where a final is missing, trials choose the rate.
    """
    rows = list(rows)
    rate = max(finals_of(rows, method) or _at_first(rows, method), key=lambda row: row["accuracy"])["rate"]
    trials = (row for row in rows if row["purpose"] == "tuning" and row["rate"] == rate)
    return rate, max(trials, key=lambda row: row["accuracy"])["knob"]


def finals_of(rows: Iterable[Mapping[str, Any]], method: Method) -> list[Mapping[str, Any]]:
    """Return the finals between a method's best rates, or nothing where one of them is missing."""
    rows = list(rows)
    rates = finalists(_at_first(rows, method))
    finals = [row for row in rows if row["purpose"] == "final" and row["rate"] in rates]
    return finals if len(finals) == len(rates) else []


def _at_first(rows: Iterable[Mapping[str, Any]], method: Method) -> list[Mapping[str, Any]]:
    """Return a method's trials at its first knob."""
    first = method.knobs[0] if method.knobs else None
    return [row for row in rows if row["purpose"] == "tuning" and row["knob"] == first]

"""Which runs the table still needs, given the rows that it has: rates, then knobs, then what is reported.

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
    it chooses a rate or a knob, and "report" where it is shown."""

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
    trials = [run_of(method, size, rate, first, TUNING_SEED, "tuning") for rate in RATES]
    if missing := [run for run in trials if run.identity not in known]:
        return missing, None
    rate, _ = best_of([known[run.identity] for run in trials], method)
    others = [run_of(method, size, rate, knob, TUNING_SEED, "tuning") for knob in rest]
    if missing := [run for run in others if run.identity not in known]:
        return missing, None
    return [], best_of([known[run.identity] for run in (*trials, *others)], method)


def best_of(trials: Sequence[Mapping[str, Any]], method: Method) -> tuple[float, float | None]:
    """Return the rate that is the best at the method's first knob, and the knob that is the best at that rate.

    - `trials`: the rows of a method's trials.
    """
    first = method.knobs[0] if method.knobs else None
    rate = max((row for row in trials if row["knob"] == first), key=lambda row: row["accuracy"])["rate"]
    return rate, max((row for row in trials if row["rate"] == rate), key=lambda row: row["accuracy"])["knob"]

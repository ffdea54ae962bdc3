"""Which runs a table still needs, given the rows that it has: rates first, then what is reported at the best of them.

A function of the rows alone, so that an interrupted table goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rungs.run import Run, identity_of

TUNING_SEED = 0
WORKERS = 8


@dataclass(frozen=True)
class Method:
    """A sentence with the optimizer that it is trained with, and the rates that are tried."""

    sentence: str
    optimizer: str = "adamw"
    rates: tuple[float, ...] = ()
    workers: int = WORKERS


@dataclass(frozen=True)
class Rung:
    """A model, its batch, and how long it is trained."""

    name: str
    task: str
    layers: int
    width: int
    context: int
    rows: int
    steps: int
    tuning: float
    seeds: tuple[int, ...]
    fewer: tuple[float, ...]
    skewed: bool = False


def read(table: Mapping[str, Any], rung: str) -> tuple[Rung, list[Method]]:
    """Return a rung of the ladder and its methods, from what `rungs.toml` holds."""
    given = dict(table[rung])
    chosen = Rung(rung, **{key: tuple(x) if isinstance(x, list) else x for key, x in given.items()})
    methods = []
    for entry in table["method"]:
        optimizer = entry.get("optimizer", "adamw")
        rates = tuple(entry.get("rates", table["optimizers"][optimizer]))
        methods.append(Method(entry["sentence"], optimizer, rates, entry.get("workers", WORKERS)))
    return chosen, methods


def needed(rung: Rung, methods: Sequence[Method], rows: Iterable[Mapping[str, Any]]) -> Iterator[Run]:
    """Yield the runs that are not among the rows, in the order in which they should be made: the rates of a method
    before what is reported of it, the first seed of all methods before the second, and the baseline's shorter runs
    after its first seed."""
    known = {identity_of(row): row for row in rows}
    tuned: dict[Method, float] = {}
    for method in methods:
        trials = [run_of(rung, method, rate, TUNING_SEED, "rate") for rate in method.rates]
        missing = [run for run in trials if run.identity not in known]
        yield from missing
        if not missing:
            tuned[method] = min(trials, key=lambda run: _loss(known[run.identity])).lr
    for seed in rung.seeds:
        for method, rate in tuned.items():
            reports = [run_of(rung, method, rate, seed, "report")]
            if method.sentence == "bsp":
                reports += [run_of(rung, method, rate, seed, "fewer", share) for share in rung.fewer]
            yield from (run for run in reports if run.identity not in known)


def run_of(rung: Rung, method: Method, rate: float, seed: int, purpose: str, share: float = 1.0) -> Run:
    """Return a run of a method; one that chooses a rate, or has fewer tokens, has a schedule of its own length."""
    share = rung.tuning if purpose == "rate" else share
    steps = round(share * rung.steps / 10) * 10
    return Run(
        task=rung.task,
        rung=rung.name,
        workers=method.workers,
        optimizer=method.optimizer,
        method=method.sentence,
        lr=rate,
        seed=seed,
        steps=steps,
        full_steps=rung.steps,
        purpose=purpose,
        skewed=rung.skewed,
    )


def _loss(row: Mapping[str, Any]) -> float:
    return math.inf if row["loss"] is None else float(row["loss"])

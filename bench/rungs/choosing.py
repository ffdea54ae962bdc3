"""Which runs a table still needs, given the rows that it has: rates first, then what is reported at the best of them.

A function of the rows alone, so that an interrupted table goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rungs.guards import ADAMS, on_other_data, remembers_errors_of_gradients
from bench.rungs.run import Run, identity_of, strategy_at

from laconic.frontier.methods import steps_outside
from laconic.strategy import Strategy

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
    rows: int
    steps: int
    tuning: float
    seeds: tuple[int, ...]
    fewer: tuple[float, ...]
    reports: int = 3
    """On how many of the seeds a method is reported."""
    skewed: bool = False
    layers: int = 0
    width: int = 0
    context: int = 0
    optimizer: str = "adamw"
    """Of methods that name none."""
    compressors: tuple[str, ...] = ()
    """The families of `compressors.toml` that are trained beside the methods of the ladder."""


def read(table: Mapping[str, Any], rung: str, families: Mapping[str, Mapping[str, Any]]) -> tuple[Rung, list[Method]]:
    """Return a rung of the ladder and its methods, from what `rungs.toml` and `compressors.toml` hold."""
    given = {key: tuple(x) if isinstance(x, list) else x for key, x in table[rung].items()}
    chosen = Rung(rung, **given)
    rates = table["rates"][chosen.task]
    entries = [entry for entry in table["method"] if chosen.task in entry.get("tasks", ("bytes", "bpe"))]
    entries += [entry for family in chosen.compressors for entry in _of_family(families[family], chosen)]
    methods: dict[tuple[str, str, int], Method] = {}
    for entry in entries:
        optimizer, workers = entry.get("optimizer", chosen.optimizer), entry.get("workers", WORKERS)
        if optimizer not in rates:  # the task has no grid for it, and does without what is made for it
            continue
        tried = tuple(rate * entry.get("factor", 1.0) for rate in entry.get("rates", rates[optimizer]))
        key = str(strategy_at(entry["sentence"], chosen.steps)), optimizer, workers
        methods.setdefault(key, Method(entry["sentence"], optimizer, tried, workers))
    return chosen, list(methods.values())


def _of_family(family: Mapping[str, Any], rung: Rung) -> Iterator[dict[str, Any]]:
    """Yield the entries of a family of compressors: under Adam with a dense start where they remember errors. What has
    phases of its own is left to the ladder's methods, whose phases are shares of the steps."""
    for name, entry in family.items():
        if name == "title" or "until" in entry.get("sentence", ""):
            continue
        optimizer = entry.get("optimizer", rung.optimizer)
        sentence = entry.get("sentence", name)
        if optimizer in ADAMS and remembers_errors_of_gradients(Strategy.parse(sentence)):
            sentence = f"bsp until step {{10%}}, then {sentence}"
        of_images, of_text = entry.get("rate", (1.0, 1.0))
        factor = of_text if rung.task in ("bytes", "bpe") else of_images
        yield {"sentence": sentence, "optimizer": optimizer, "factor": factor}


def needed(rung: Rung, methods: Sequence[Method], rows: Sequence[Mapping[str, Any]], data: str = "") -> Iterator[Run]:
    """Yield the runs that are not among the rows, in the order in which they should be made: of one method after
    another its rates and what is reported of it on a first seed, so that a table that is cut short has fewer methods;
    then what is reported on further seeds, until all have as many as the rung asks for.

    - `data`: the hash of what would be trained on. Seeds whose reports were trained on something else stay as they are.
    """
    known = {identity_of(row): row for row in rows}
    seeds = [seed for seed in rung.seeds if not on_other_data(seed, data, rows)]
    tuned: dict[Method, float] = {}
    yielded = set[tuple[Any, ...]]()

    def fresh(runs: Iterable[Run]) -> Iterator[Run]:
        for run in runs:
            if run.identity not in known and run.identity not in yielded:
                yielded.add(run.identity)
                yield run

    for method in methods:
        trials = [run_of(rung, method, rate, TUNING_SEED, "rate") for rate in method.rates]
        if missing := list(fresh(trials)):
            yield from missing
        else:
            tuned[method] = min(trials, key=lambda run: _loss(known[run.identity])).lr
            yield from fresh(_lacking(rung, method, tuned, seeds, known, 1))
    for count in range(2, rung.reports + 1):
        for method in tuned:
            yield from fresh(_lacking(rung, method, tuned, seeds, known, count))
    for share in rung.fewer:
        for method in [method for method in tuned if method.sentence == "bsp"]:
            yield from fresh(_lacking(rung, method, tuned, seeds, known, rung.reports, "fewer", share))


def _lacking(
    rung: Rung,
    method: Method,
    tuned: Mapping[Method, float],
    seeds: Sequence[int],
    known: Mapping[tuple[Any, ...], Any],
    count: int,
    purpose: str = "report",
    share: float = 1.0,
) -> Iterator[Run]:
    """Yield runs of a method until it has them on so many seeds, each after the baselines that it is paired with."""
    runs = {seed: run_of(rung, method, tuned[method], seed, purpose, share) for seed in rung.seeds}
    lacking = count - sum(run.identity in known for run in runs.values())
    for seed in [seed for seed in seeds if runs[seed].identity not in known][: max(lacking, 0)]:
        for other, rate in tuned.items():
            if other.sentence == "bsp" and other.optimizer in (method.optimizer, rung.optimizer):
                yield run_of(rung, other, rate, seed, "report")
        yield runs[seed]


def run_of(rung: Rung, method: Method, rate: float, seed: int, purpose: str, share: float = 1.0) -> Run:
    """Return a run of a method; one that chooses a rate, or has fewer tokens, has a schedule of its own length. It ends
    with a whole period of the method."""
    share = rung.tuning if purpose == "rate" else share
    steps = round(share * rung.steps / 10) * 10
    steps -= steps_outside(strategy_at(method.sentence, steps), steps)
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

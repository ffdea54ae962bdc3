"""The output of `laconic federated`: runs, sentences side by side, and plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from laconic.errors import LaconicError
from laconic.federated.federation import Federation
from laconic.federated.local import Trainer
from laconic.federated.outcome import FederatedOutcome, Step
from laconic.federated.plan import plan
from laconic.federated.processes.launch import run_processes
from laconic.federated.simulate import simulate
from laconic.federated.strategy import FederatedStrategy
from laconic.files import write_text
from laconic.launch.request import read_target
from laconic.report.page.federated import page
from laconic.report.progress import progress
from laconic.units import write_seconds

_SENTENCE = "fedavg(clients=10)"


def print_run(
    what: str | None,
    out: Path | None,
    picture: Path | None,
    given: Mapping[str, Any],
    processes: int | None,
    folder: Path,
) -> None:
    """Run a sentence or a file, on virtual clients or between processes, print what came of it, and write that where it
    is asked for."""
    federation, sentences = _read(what, (), given)
    if len(sentences) > 1:
        raise LaconicError(f"{what} has {len(sentences)} sentences; write laconic federated compare {what}")
    if processes is None:
        found = _runs(federation, sentences)
    else:
        found = [(sentences[0], _between_processes(federation, sentences[0], folder, processes))]
    _print_outcomes(federation, found)
    _write(federation, found, out, picture)


def print_comparison(what: Sequence[str], out: Path | None, picture: Path | None, given: Mapping[str, Any]) -> None:
    """Run sentences side by side on the same clients, and print what each took to the target."""
    first, rest = (what[0], what[1:]) if what else (None, ())
    federation, sentences = _read(first, rest, given)
    found = _runs(federation, sentences)
    _print_outcomes(federation, found)
    _write(federation, found, out, picture)


def print_plan(
    what: Sequence[str], parameters: float | None, samples: int, out: Path | None, given: Mapping[str, Any]
) -> None:
    """Print what sentences would cost on a population, without training."""
    first, rest = (what[0], what[1:]) if what else (None, ())
    federation, sentences = _read(first, rest, given)
    if parameters is None:
        task, population = federation.learned, federation.population
    else:
        task, population = federation.of_size(int(parameters), samples)
    columns = ("sentence", "up, a client and round", "down", "on joining", "seconds a step", "all clients, a step")
    table = Table(*columns, box=box.MARKDOWN)
    rows = []
    for sentence in sentences:
        cost = plan(task, population, sentence, rate=federation.rate, seed=federation.seed)
        parts = (cost.up_bytes, cost.down_bytes, cost.whole_bytes)
        table.add_row(
            str(sentence),
            *(_bytes(part) for part in parts),
            write_seconds(cost.step_seconds),
            _bytes(cost.step_bytes),
        )
        rows.append({"sentence": str(sentence), **asdict(cost)})
    table.title = f"{len(population):,} clients, {rows[0]['parameters']:,} parameters"
    Console(width=max(140, Console().width)).print(table)
    if out is not None:
        write_text(out, json.dumps({"federation": asdict(federation), "plans": rows}, indent=1))


# ------------------------------------------------------------------------------------------------ runs


def _read(
    what: str | None, more: Sequence[str], given: Mapping[str, Any]
) -> tuple[Federation, list[FederatedStrategy]]:
    """Return what is to be run, and its sentences, all of which are read before anything takes long."""
    path = Path(what) if what is not None and what.endswith(".toml") else None
    federation = Federation.read(path, **given)
    _target(federation)
    texts = [*([what] if what is not None and path is None else []), *more]
    sentences = [FederatedStrategy.parse(text) for text in texts or federation.strategies or (_SENTENCE,)]
    return federation, sentences


def _runs(
    federation: Federation, sentences: Sequence[FederatedStrategy]
) -> list[tuple[FederatedStrategy, FederatedOutcome]]:
    found = []
    with progress() as shown:
        for sentence in sentences:
            shown.begin(str(sentence), federation.steps)

            def tell(step: Step, done: Callable[[], None] = shown.done, at: Callable[[str], None] = shown.at) -> None:
                at(_line(step))
                done()

            outcome = simulate(
                federation.learned,
                federation.population,
                sentence,
                federation.steps,
                rate=federation.rate,
                seed=federation.seed,
                evaluate_every=federation.evaluate_every,
                progress=tell,
            )
            shown.say(f"{sentence}: {_line(outcome.steps[-1])}" if outcome.steps else f"{sentence}: no step was made")
            found.append((sentence, outcome))
    return found


def _between_processes(
    federation: Federation, sentence: FederatedStrategy, folder: Path, processes: int
) -> FederatedOutcome:
    """Train between processes, and judge the model that comes out."""
    with Console(stderr=True).status(f"{sentence} between {processes} processes"):
        outcome = run_processes(federation, sentence, folder, processes=processes)
    scores = Trainer(federation.learned, federation.seed).evaluate(outcome.parameters)
    steps = [*outcome.steps[:-1], *(replace(step, scores=scores) for step in outcome.steps[-1:])]
    return replace(outcome, steps=steps)


def _line(step: Step) -> str:
    scores = "".join(f", {name} {value:.4g}" for name, value in step.scores.items())
    return f"{write_seconds(step.seconds)}, {_bytes(step.up_bytes)} up, {_bytes(step.down_bytes)} down{scores}"


def _print_outcomes(federation: Federation, found: Sequence[tuple[FederatedStrategy, FederatedOutcome]]) -> None:
    target = _target(federation)
    scores = list(dict.fromkeys(name for _, outcome in found for name in _last_scores(outcome)))
    to = [f"{what} to target" for what in ("steps", "time", "up", "down")] if target else []
    table = Table(box=box.MARKDOWN)
    table.add_column("sentence", no_wrap=True)
    for heading in ("steps", "time", "up", "down", *scores, *to):
        table.add_column(heading)
    for sentence, outcome in found:
        last = _last_scores(outcome)
        cells = [str(len(outcome.steps)), write_seconds(outcome.seconds)]
        cells += [_bytes(float(counted.sum())) for counted in (outcome.up_bytes, outcome.down_bytes)]
        cells += [f"{last[name]:.4g}" if name in last else "–" for name in scores]
        if target is not None:
            record = _to_target(outcome, *target)
            cells += (
                ["not reached", "–", "–", "–"]
                if record is None
                else [str(record["steps"]), write_seconds(record["seconds"])]
                + [_bytes(record[name]) for name in ("up_bytes", "down_bytes")]
            )
        table.add_row(str(sentence), *cells)
    aim = f", target {federation.target}" if target else ""
    table.title = f"{federation.task}, {len(federation.population):,} clients, {federation.partition}{aim}"
    Console(width=max(180, Console().width)).print(table)


def _target(federation: Federation) -> tuple[str, float] | None:
    return read_target(federation.target, LaconicError) if federation.target else None


def _to_target(outcome: FederatedOutcome, score: str, value: float) -> dict[str, Any] | None:
    """Return what it took until a score had a value, if it ever had."""
    step = outcome.first(score, value)
    if step is None:
        return None
    return {
        "steps": 1 + list(outcome.steps).index(step),
        "seconds": step.seconds,
        "up_bytes": step.up_bytes,
        "down_bytes": step.down_bytes,
    }


def _last_scores(outcome: FederatedOutcome) -> Mapping[str, float]:
    return next((step.scores for step in reversed(outcome.steps) if step.scores), {})


def _write(
    federation: Federation,
    found: Sequence[tuple[FederatedStrategy, FederatedOutcome]],
    out: Path | None,
    picture: Path | None,
) -> None:
    target = _target(federation)
    if out is not None:
        runs = [
            {
                "sentence": str(sentence),
                "seconds": outcome.seconds,
                "scores": dict(_last_scores(outcome)),
                "to_target": None if target is None else _to_target(outcome, *target),
                "up_bytes": outcome.up_bytes.tolist(),
                "down_bytes": outcome.down_bytes.tolist(),
                "steps": [asdict(step) for step in outcome.steps],
            }
            for sentence, outcome in found
        ]
        write_text(out, json.dumps({"federation": asdict(federation), "runs": runs}, indent=1))
    if picture is not None:
        counts = federation.population.shards.counts(federation.labels)
        curves = [(str(sentence), outcome) for sentence, outcome in found]
        write_text(picture, page(federation.task, federation.partition, counts, curves))
        Console().print(f"{picture}: open it in a browser", markup=False, highlight=False)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"

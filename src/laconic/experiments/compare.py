"""Carry a comparison out: tune if asked to, run the rows side by side for every seed, and measure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.experiments.choose import Chosen, choose
from laconic.experiments.folder import Folder
from laconic.experiments.interleave import run_interleaved
from laconic.experiments.measure import Line, Trio, line_of
from laconic.experiments.outcome import Outcome
from laconic.experiments.row import Row
from laconic.experiments.settings import (
    CHOOSING_SEEDS,
    PROTOCOL_BLOCKS,
    REPORTING_SEEDS,
    Settings,
    alternatives,
    groups,
)
from laconic.experiments.virtual_rows import run_virtually
from laconic.experiments.watch import ProgressReport
from laconic.units import bits_per_second, seconds

if TYPE_CHECKING:
    from laconic.launch.net import ShapedNetwork

_NO_SEED = -1


@dataclass(frozen=True)
class Comparison:
    """What came of it; the first line is the baseline's."""

    settings: Settings
    folder: Path
    lines: tuple[Line, ...]
    target: tuple[str, float | None] | None  # None as value: the reference's own end, seed by seed
    departures: tuple[str, ...]  # where this is not what the protocol asks for

    @property
    def failed(self) -> bool:
        return any(line.error is not None for line in self.lines)

    @property
    def regime(self) -> float | None:
        """r: the baseline's exposed communication over its computation."""
        baseline = self.lines[0]
        if baseline.exposed_seconds is None or baseline.computing_seconds is None:
            return None
        exposed, computing = baseline.exposed_seconds.value.middle, baseline.computing_seconds.middle
        return exposed / computing if computing > 1e-9 * abs(exposed) else None


def compare(settings: Settings, wanted_folder: str | None, watch: ProgressReport) -> Comparison:
    """Compare; rows that fail are named in their lines, the others go on."""
    folder = Folder(wanted_folder, settings)
    folder.begin(sys.argv)
    watch.say(f"the comparison is kept in {folder.path}")
    with _network(settings) as net:
        bench = _Bench(settings, folder, net, watch)
        if settings.tuning is None:
            texts = [variant for text in settings.strategies for variant in alternatives(text)]
            chosen = Chosen.untuned(texts)
            seeds = settings.seeds or (_NO_SEED,)
        else:
            chosen = choose(settings, folder, bench.alone, watch)
            seeds = settings.tuning.reporting_seeds
        sessions = {seed: bench.session(chosen, seed) for seed in seeds}
    target = settings.target or chosen.target

    def aim(seed: int) -> tuple[str, float] | None:
        if settings.target is not None or chosen.metric is None:
            return settings.target
        value = sessions[seed][chosen.reference].own.final(chosen.metric)
        return None if value is None else (chosen.metric, value)

    lines = tuple(
        line_of(name, {seed: session[place] for seed, session in sessions.items()}, aim, chosen.falls)
        for place, name in enumerate(chosen.names)
    )
    return Comparison(settings, folder.path, lines, target, (*chosen.departures, *_departures(settings, lines)))


def _departures(settings: Settings, lines: Sequence[Line]) -> Iterator[str]:
    if settings.tuning is None:
        count = len(settings.seeds)
        yield "no tuning, " + ("the script's own seed" if not count else f"{count} seed{'s' if count > 1 else ''}")
    else:
        for what, seeds, least in (
            ("tuned", settings.tuning.choosing_seeds, CHOOSING_SEEDS),
            ("reported", settings.tuning.reporting_seeds, REPORTING_SEEDS),
        ):
            if len(seeds) < len(least):
                yield f"{what} on {len(seeds)} seed{'s' if len(seeds) > 1 else ''}, not {len(least)}"
    fewest = min(line.blocks for line in lines if line.error is None) if any(not x.error for x in lines) else 0
    if settings.engine == "real" and fewest < PROTOCOL_BLOCKS:
        yield f"{fewest} timed blocks, not {PROTOCOL_BLOCKS}"


@contextmanager
def _network(settings: Settings) -> Iterator[ShapedNetwork | None]:
    """The network to run on: one of our own for this time, one that stands, or the loopback."""
    if settings.net is None and settings.rate is None:
        yield None
        return
    from laconic.launch.net import find, shaped

    if settings.net is not None:
        yield find(settings.net)
        return
    assert settings.rate is not None
    delay = seconds(settings.delay) if settings.delay is not None else 0.0
    with shaped(settings.workers, bits_per_second(settings.rate), delay) as net:
        yield net


class _Bench:
    """Runs rows for one seed, in groups that fit."""

    def __init__(self, settings: Settings, folder: Folder, net: ShapedNetwork | None, watch: ProgressReport) -> None:
        self._settings, self._folder, self._net, self._watch = settings, folder, net, watch

    def session(self, chosen: Chosen, seed: int) -> list[Trio]:
        """All rows and what they are measured against."""
        label = "rows" if seed == _NO_SEED else f"seed-{seed}"
        rows = [replace(row, arguments=(*row.arguments, *self._seeded(seed))) for row in chosen.rows]
        places = groups(len(rows), self._settings.rows_at_once)
        key = [[row.strategy, *row.arguments] for row in rows]
        computing = Row.computing((*chosen.rows[0].arguments, *self._seeded(seed)))
        parts = [[computing, *(rows[k] for k in group)] for group in places]
        done = self._folder.remembered(label, key)
        if done is None:
            done = []
            for number, part in enumerate(parts):
                where = label if len(parts) == 1 else f"{label}-group-{number}"
                self._watch.say(self._announce(part, seed))
                done.append(self._run(part, self._folder.rows(where)))
            self._folder.remember(label, key, [[row.name for row in part] for part in parts], done)
        trios: dict[int, Trio] = {}
        for group, outcomes in zip(places, done, strict=True):
            alone, baseline, *_ = outcomes
            for place, outcome in zip(group, outcomes[1:], strict=True):
                trios.setdefault(place, Trio(outcome, baseline, alone))
        return [trios[place] for place in range(len(rows))]

    def alone(self, row: Row, seed: int, label: str) -> Outcome:
        """One row by itself, to choose by."""
        seeded = replace(row, arguments=(*row.arguments, *self._seeded(seed)))
        (outcome,) = self._run([seeded], self._folder.rows(label))
        return outcome

    def _run(self, rows: Sequence[Row], folder: Path) -> list[Outcome]:
        if self._settings.engine == "virtual":
            return run_virtually(rows, self._settings, folder, self._watch)
        return run_interleaved(rows, self._settings, folder, self._net, self._watch)

    def _seeded(self, seed: int) -> tuple[str, ...]:
        return () if seed == _NO_SEED else (self._settings.seed_argument, str(seed))

    def _announce(self, rows: Sequence[Row], seed: int) -> str:
        what = f"{len(rows) - 1} rows and one that computes alone" + ("" if seed == _NO_SEED else f", seed {seed}")
        if self._settings.engine == "virtual":
            return f"{what}; {self._settings.workers} virtual workers each, one row after another"
        return (
            f"{what}; {self._settings.workers} workers each: {len(rows) * self._settings.workers} processes in memory "
            "at once, one row at work at a time (--rows-at-once limits them)"
        )

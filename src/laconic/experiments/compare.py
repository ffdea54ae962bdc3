"""A whole comparison: tune if the protocol is asked for, run the rows side by side for every seed, and measure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.experiments.choose_rows import ChosenRows, choose
from laconic.experiments.folder import Folder
from laconic.experiments.interleave import run_interleaved
from laconic.experiments.measure import Line, RowOutcomes, line_of, regime
from laconic.experiments.outcome import RunOutcome
from laconic.experiments.progress import ProgressReport
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
from laconic.units import bits_per_second, seconds

if TYPE_CHECKING:
    from laconic.launch.net import ShapedNetwork

_NO_SEED = -1


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: one line for each row, the baseline's first."""

    settings: Settings
    folder: Path
    lines: tuple[Line, ...]
    target: tuple[str, float | None] | None  # a value of None: the reference's own final metric, seed by seed
    departures: tuple[str, ...]  # where this is not what the protocol asks for

    @property
    def failed(self) -> bool:
        return any(line.error is not None for line in self.lines)

    @property
    def regime(self) -> float | None:
        """r: the exposed communication time of the baseline divided by its computation time; None if unknown."""
        return regime(self.lines[0])


def compare(settings: Settings, wanted_folder: str | None, progress: ProgressReport) -> Comparison:
    """Run a comparison and return its table; a row that fails is reported in its line while the others go on."""
    folder = Folder(wanted_folder, settings)
    folder.begin(sys.argv)
    progress.say(f"the comparison is kept in {folder.path}")
    with _network(settings) as net:
        runner = _RowRunner(settings, folder, net, progress)
        if settings.tuning is None:
            texts = [variant for text in settings.strategies for variant in alternatives(text)]
            chosen = ChosenRows.untuned(texts)
            seeds = settings.seeds or (_NO_SEED,)
        else:
            chosen = choose(settings, folder, runner.alone, progress)
            seeds = settings.tuning.reporting_seeds
        sessions = {seed: runner.session(chosen, seed) for seed in seeds}
    target = settings.target or chosen.target

    def aim(seed: int) -> tuple[str, float] | None:
        if settings.target is not None or chosen.metric is None:
            return settings.target
        reference = sessions[seed][chosen.reference].own
        value = None if reference.error is not None else reference.final(chosen.metric)
        return None if value is None else (chosen.metric, value)

    lines = tuple(
        line_of(name, {seed: session[place] for seed, session in sessions.items()}, aim, chosen.falls)
        for place, name in enumerate(chosen.names)
    )
    departures = (*chosen.departures, *_departures(settings, lines), *_too_short(settings, chosen.rows, lines))
    return Comparison(settings, folder.path, lines, target, departures)


def _too_short(settings: Settings, rows: Sequence[Row], lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence for each row of which no block could be timed."""
    for row, line in zip(rows, lines, strict=True):
        if line.error is None and not line.blocks:
            steps = settings.steps_per_block(row.strategy)
            yield (
                f"`{row.strategy}` was not timed: a block of it is {steps} steps, and a run needs {2 * steps}, the "
                "first block being warm-up"
            )


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
    """Yield the network to run on: one shaped for this comparison, an existing one, or None for the loopback."""
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


class _RowRunner:
    """Runs the rows of a comparison for one seed, in groups of at most `rows_at_once` rows."""

    def __init__(self, settings: Settings, folder: Folder, net: ShapedNetwork | None, progress: ProgressReport) -> None:
        self._settings, self._folder, self._net, self._progress = settings, folder, net, progress

    def session(self, chosen: ChosenRows, seed: int) -> list[RowOutcomes]:
        """Run all rows with one seed, or load their outcomes, and return each with the runs it is measured against."""
        label = "rows" if seed == _NO_SEED else f"seed-{seed}"
        rows = [replace(row, arguments=(*row.arguments, *self._seeded(seed))) for row in chosen.rows]
        places = groups(len(rows), self._settings.rows_at_once)
        key = [[row.strategy, *row.arguments] for row in rows]
        computing = Row.computing((*chosen.rows[0].arguments, *self._seeded(seed)))
        parts = [[computing, *(rows[k] for k in group)] for group in places]
        done = self._folder.load_session(label, key)
        if done is None:
            done = []
            for number, part in enumerate(parts):
                where = label if len(parts) == 1 else f"{label}-group-{number}"
                self._progress.say(self._announce(part, seed))
                done.append(self._run(part, self._folder.rows(where)))
            self._folder.save_session(label, key, [[row.name for row in part] for part in parts], done)
        by_place: dict[int, RowOutcomes] = {}
        for group, outcomes in zip(places, done, strict=True):
            alone, baseline, *_ = outcomes
            for place, outcome in zip(group, outcomes[1:], strict=True):
                by_place.setdefault(place, RowOutcomes(outcome, baseline, alone))
        return [by_place[place] for place in range(len(rows))]

    def alone(self, row: Row, seed: int, label: str) -> RunOutcome:
        """Run one row without the others, as a trial of the tuning."""
        seeded = replace(row, arguments=(*row.arguments, *self._seeded(seed)))
        (outcome,) = self._run([seeded], self._folder.rows(label))
        return outcome

    def _run(self, rows: Sequence[Row], folder: Path) -> list[RunOutcome]:
        if self._settings.engine == "virtual":
            return run_virtually(rows, self._settings, folder, self._progress)
        return run_interleaved(rows, self._settings, folder, self._net, self._progress)

    def _seeded(self, seed: int) -> tuple[str, ...]:
        return () if seed == _NO_SEED else (self._settings.seed_argument, str(seed))

    def _announce(self, rows: Sequence[Row], seed: int) -> str:
        what = f"{len(rows) - 1} rows and one that only computes" + ("" if seed == _NO_SEED else f", seed {seed}")
        if self._settings.engine == "virtual":
            return f"{what}; {self._settings.workers} virtual workers each, one row after another"
        return (
            f"{what}; {self._settings.workers} workers each: {len(rows) * self._settings.workers} processes in memory "
            "at once, one row running at a time (--rows-at-once limits them)"
        )

"""Rows on virtual workers: time is virtual, so they need not be interleaved; each runs in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laconic.experiments.outcome import RunOutcome, RunRecords
from laconic.experiments.progress import ProgressReport
from laconic.experiments.row import Row, RowProcess, request_for
from laconic.experiments.settings import Settings
from laconic.values.run_config import STEPS


def run_virtually(rows: Sequence[Row], settings: Settings, folder: Path, progress: ProgressReport) -> list[RunOutcome]:
    """Run all rows, one after another; a row that fails is reported while the others go on."""
    progress.begin("virtual runs", len(rows))
    outcomes = []
    for number, row in enumerate(rows):
        progress.at(row.name)
        outcomes.append(_run(row, settings, folder / f"{number}-{row.slug}"))
        progress.done()
        if outcomes[-1].error is not None:
            progress.say(f"`{row.name}` failed: {outcomes[-1].error}")
    return outcomes


def _run(row: Row, settings: Settings, folder: Path) -> RunOutcome:
    here = {"engine": "virtual", "network": settings.network}
    request = request_for(row, settings, folder, **here, record_steps=True, stop_after=settings.steps)
    run = RowProcess(row, request, folder)
    try:
        error = run.failure()
    finally:
        run.end()
    run_records = RunRecords()
    for path in sorted((folder / STEPS).glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        run_records.records[rank] = [json.loads(line) for line in path.read_text().splitlines()]
    return run_records.outcome(
        settings.steps_per_block(row.strategy), uncounted=False, error=error or run_records.nothing_to_measure()
    )

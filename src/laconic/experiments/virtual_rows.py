"""Rows on virtual workers: time is virtual, so they need not take turns; each runs in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from laconic.experiments.outcome import Material, Outcome
from laconic.experiments.row import Row, RowProcess, request_for
from laconic.experiments.settings import Settings
from laconic.experiments.watch import ProgressReport
from laconic.values.run_config import STEPS


def run_virtually(rows: Sequence[Row], settings: Settings, folder: Path, watch: ProgressReport) -> list[Outcome]:
    """Run one after another; a row that fails is named, the others go on."""
    watch.begin("virtual runs", len(rows))
    outcomes = []
    for number, row in enumerate(rows):
        watch.at(row.name)
        outcomes.append(_run(row, settings, folder / f"{number}-{row.slug}"))
        watch.done()
        if outcomes[-1].error is not None:
            watch.say(f"`{row.name}` failed: {outcomes[-1].error}")
    return outcomes


def _run(row: Row, settings: Settings, folder: Path) -> Outcome:
    here = {"engine": "virtual", "network": settings.network}
    request = request_for(row, settings, folder, **here, record_steps=True, stop_after=settings.steps)
    run = RowProcess(row, request, folder)
    try:
        error = run.failure()
    finally:
        run.end()
    material = Material()
    for path in sorted((folder / STEPS).glob("rank-*.jsonl")):
        rank = int(path.stem.removeprefix("rank-"))
        material.records[rank] = [json.loads(line) for line in path.read_text().splitlines()]
    return material.outcome(settings.steps_per_block, silent=False, error=error or material.stillness())

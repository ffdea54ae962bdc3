"""Interleaved rows on real processes: all are alive, and one runs at a time, in blocks of steps: ABC, CAB, BCA …

The machine's noise (temperature, neighbours, page cache) then affects all rows alike, and a ratio within a round is
free of it. The order within a round is drawn anew each time, with a fixed seed.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.experiments.outcome import RunOutcome
from laconic.experiments.progress import ProgressReport
from laconic.experiments.rivals.text import is_rival
from laconic.experiments.row import Row, RowProcess, request_for
from laconic.experiments.settings import Settings
from laconic.experiments.step_gate import GatedRow

if TYPE_CHECKING:
    from laconic.launch.net import ShapedNetwork

HEARTBEAT_SECONDS = 60.0
"""The heartbeat timeout of a row, longer than that of a single run: rows that start slow down those that wait."""


@dataclass
class _RunningRow:
    """A row that has been started, with its gate and its process; `error` says why it ended early."""

    row: Row
    gate: GatedRow
    run: RowProcess
    block_steps: int
    alive: bool = True
    error: str | None = None

    def update(self, stopped: bool) -> None:
        self.alive = stopped
        if not stopped:
            self.error = self.run.failure() or self.gate.run_records.nothing_to_measure()


def run_interleaved(
    rows: Sequence[Row], settings: Settings, folder: Path, net: ShapedNetwork | None, progress: ProgressReport
) -> list[RunOutcome]:
    """Run all rows to the given steps or their script's end; a row that fails is reported while the others go on."""
    running: list[_RunningRow] = []
    with tempfile.TemporaryDirectory(prefix="laconic-") as sockets:  # a socket's path must be short
        try:
            progress.begin("starting", len(rows))
            for number, row in enumerate(rows):
                progress.at(row.name)
                running.append(_start(row, number, settings, folder, net, Path(sockets)))
                _report(running[-1], progress)
            _run_rounds(running, settings, net, progress)
            return [
                e.gate.run_records.outcome(
                    e.block_steps, uncounted=is_rival(e.row.strategy) and not e.row.alone, error=e.error
                )
                for e in running
            ]
        finally:
            for one in running:
                one.run.end()
                one.gate.close()


def _start(
    row: Row, number: int, settings: Settings, folder: Path, net: ShapedNetwork | None, sockets: Path
) -> _RunningRow:
    path = sockets / str(number)
    gate = GatedRow(path, settings.workers)
    own = folder / f"{number}-{row.slug}"
    where = None if net is None else net.name
    request = request_for(row, settings, own, heartbeat_seconds=HEARTBEAT_SECONDS, net=where, gate=str(path))
    one = _RunningRow(row, gate, RowProcess(row, request, own), settings.steps_per_block(row.strategy))
    try:
        one.update(gate.wait_until_stopped(one.run))
    except BaseException:
        one.run.end()
        raise
    return one


def _run_rounds(
    running: Sequence[_RunningRow], settings: Settings, net: ShapedNetwork | None, progress: ProgressReport
) -> None:
    steps = settings.steps
    progress.begin("blocks", None if steps is None else sum(-(-steps // one.block_steps) for one in running))
    number = 0
    while alive := [one for one in running if one.alive]:
        for one in random.Random(number).sample(alive, len(alive)):
            of = "" if steps is None else f" of {-(-steps // one.block_steps)}"
            progress.at(f"block {number + 1}{of}: {one.row.name}")
            _run_block(one, settings, net)
            _report(one, progress)
        number += 1


def _report(one: _RunningRow, progress: ProgressReport) -> None:
    progress.done()
    if one.error is not None:
        progress.say(f"`{one.row.name}` failed: {one.error}")


def _run_block(one: _RunningRow, settings: Settings, net: ShapedNetwork | None) -> None:
    """Run one block of a row and, after its last block, let its script end."""
    gate, limit = one.gate, settings.steps
    steps = one.block_steps if limit is None else min(one.block_steps, limit - gate.steps)
    before = _counted(net, settings.workers)
    gate.open(steps)
    one.update(gate.wait_until_stopped(one.run))
    after = _counted(net, settings.workers)
    if net is not None:
        gate.run_records.wire_bytes.append((after[0] - before[0], after[1] - before[1]))
    if one.alive and limit is not None and gate.steps >= limit:
        gate.open(0)
        one.update(gate.wait_until_stopped(one.run))


def _counted(net: ShapedNetwork | None, workers: int) -> tuple[float, float]:
    """Return the bytes that the interfaces have sent and received so far, in the mean over workers."""
    if net is None:
        return 0.0, 0.0
    counts = [net.counters(worker) for worker in range(workers)]
    return sum(sent for sent, _ in counts) / workers, sum(received for _, received in counts) / workers

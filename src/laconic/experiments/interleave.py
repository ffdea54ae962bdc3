"""Rows on real processes, all alive at once, one at work at a time: ABC, CAB, BCA … in blocks of a few steps.

The machine's mood (temperature, neighbours, page cache) then touches all rows alike, and a ratio within a round is free
of it. The order within a round is drawn anew each time, with a fixed seed.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laconic.experiments.gate import GatedRow
from laconic.experiments.outcome import Outcome
from laconic.experiments.rivals.text import is_rival
from laconic.experiments.row import Row, RowProcess, request_for
from laconic.experiments.settings import Settings
from laconic.experiments.watch import ProgressReport

if TYPE_CHECKING:
    from laconic.launch.net import ShapedNetwork

HEARTBEAT_SECONDS = 60.0
"""More patient than a run of its own: rows that start load the machine of those that wait."""


@dataclass
class _Entrant:
    """A row that takes part: its gate and its run."""

    row: Row
    gate: GatedRow
    run: RowProcess
    going: bool = True
    error: str | None = None

    def settle(self, quiet: bool) -> None:
        self.going = quiet
        if not quiet:
            self.error = self.run.failure() or self.gate.material.stillness()


def run_interleaved(
    rows: Sequence[Row], settings: Settings, folder: Path, net: ShapedNetwork | None, watch: ProgressReport
) -> list[Outcome]:
    """Run all rows to the asked steps or their script's end; a row that fails is named, the others go on."""
    entrants: list[_Entrant] = []
    with tempfile.TemporaryDirectory(prefix="laconic-") as sockets:  # a socket's path must be short
        try:
            watch.begin("starting", len(rows))
            for number, row in enumerate(rows):
                watch.at(row.name)
                entrants.append(_start(row, number, settings, folder, net, Path(sockets)))
                _tell(entrants[-1], watch)
            _take_turns(entrants, settings, net, watch)
            block_steps = settings.steps_per_block
            return [
                e.gate.material.outcome(block_steps, silent=is_rival(e.row.strategy) and not e.row.alone, error=e.error)
                for e in entrants
            ]
        finally:
            for entrant in entrants:
                entrant.run.end()
                entrant.gate.close()


def _start(
    row: Row, number: int, settings: Settings, folder: Path, net: ShapedNetwork | None, sockets: Path
) -> _Entrant:
    path = sockets / str(number)
    gate = GatedRow(path, settings.workers)
    own = folder / f"{number}-{row.slug}"
    where = None if net is None else net.name
    request = request_for(row, settings, own, heartbeat_seconds=HEARTBEAT_SECONDS, net=where, gate=str(path))
    entrant = _Entrant(row, gate, RowProcess(row, request, own))
    try:
        entrant.settle(gate.await_quiet(entrant.run))
    except BaseException:
        entrant.run.end()
        raise
    return entrant


def _take_turns(
    entrants: Sequence[_Entrant], settings: Settings, net: ShapedNetwork | None, watch: ProgressReport
) -> None:
    block_steps = settings.steps_per_block
    rounds = None if settings.steps is None else -(-settings.steps // block_steps)
    watch.begin("blocks", None if rounds is None else rounds * len(entrants))
    number = 0
    while going := [entrant for entrant in entrants if entrant.going]:
        for entrant in random.Random(number).sample(going, len(going)):
            watch.at(f"block {number + 1}{'' if rounds is None else f' of {rounds}'}: {entrant.row.name}")
            _turn(entrant, settings, net)
            _tell(entrant, watch)
        number += 1


def _tell(entrant: _Entrant, watch: ProgressReport) -> None:
    watch.done()
    if entrant.error is not None:
        watch.say(f"`{entrant.row.name}` failed: {entrant.error}")


def _turn(entrant: _Entrant, settings: Settings, net: ShapedNetwork | None) -> None:
    """One block; then, where that was the last one asked for, the script's end."""
    gate, limit = entrant.gate, settings.steps
    steps = settings.steps_per_block if limit is None else min(settings.steps_per_block, limit - gate.steps)
    before = _counted(net, settings.workers)
    gate.open(steps)
    entrant.settle(gate.await_quiet(entrant.run))
    after = _counted(net, settings.workers)
    if net is not None:
        gate.material.wire_bytes.append((after[0] - before[0], after[1] - before[1]))
    if entrant.going and limit is not None and gate.steps >= limit:
        gate.open(0)
        entrant.settle(gate.await_quiet(entrant.run))


def _counted(net: ShapedNetwork | None, workers: int) -> tuple[float, float]:
    """What the interfaces have sent and received so far, mean over workers."""
    if net is None:
        return 0.0, 0.0
    counts = [net.counters(worker) for worker in range(workers)]
    return sum(sent for sent, _ in counts) / workers, sum(received for _, received in counts) / workers

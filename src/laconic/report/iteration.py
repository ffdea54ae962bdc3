"""What one iteration takes under each registered model of a schedule: a table for people, JSON for programs."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laconic.planner.iteration_models import (
    IterationRow,
    IterationSetting,
    IterationTable,
    iteration_inputs,
    iteration_table,
)
from laconic.units import write_rate, write_seconds

_PIPED = 160  # columns, where no terminal says how many there are
_PREFIX = "Return the seconds of an iteration in which "  # of many summaries: the table is about nothing else


def run(
    subject: str, gpu: str | None, workers: int, servers: int | None, network: str, latency: str, as_json: bool
) -> None:
    """Price an iteration under every model and print the table, or its JSON."""
    found = iteration_table(iteration_inputs(subject, gpu, workers, servers, network, latency))
    if as_json:
        sys.stdout.write(found.to_json())
    else:
        show(found)


def show(found: IterationTable, console: Console | None = None) -> None:
    """Print the setting, the models with their figures, and the models that lack an input with the reason."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPED)
    console.print(Text(_setting(found.setting)), soft_wrap=True)
    for note in found.setting.notes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "ms", "× computing", "speed-up", "over"):
        left = heading in ("model", "over")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    table.add_column("what it assumes", ratio=1)
    for row in found.rows:
        if not row.missing:
            table.add_row(*map(Text, _cells(row, found.setting)))
    console.print(table)
    for row in found.rows:
        if row.missing:
            console.print(Text(f"left out  {row.model}: {row.missing}"), soft_wrap=True)
    console.print(Text("Models, not measurements. A speed-up is over the baseline beside it."), soft_wrap=True)


def _setting(setting: IterationSetting) -> str:
    return (
        f"{setting.subject}: {setting.parameters:,} parameters in {setting.tensors} tensors; {setting.workers} workers "
        f"and {setting.servers} servers, each with a link of {write_rate(setting.bits_per_second)}, "
        f"{write_seconds(setting.latency_seconds)} one way.\n"
        f"Computing alone takes {_ms(setting.computing_seconds)} ms, a ring all-reduce of everything "
        f"{_ms(setting.communication_seconds)} ms: r = {setting.r:.2f}."
    )


def _cells(row: IterationRow, setting: IterationSetting) -> tuple[str, ...]:
    assert row.seconds is not None and row.speed_up is not None
    times = row.seconds / setting.computing_seconds if setting.computing_seconds else float("inf")
    assumes = row.assumes.removeprefix(_PREFIX)
    detail = f" ({row.detail})" if row.detail else ""
    return row.model, _ms(row.seconds), f"{times:.2f}", f"{row.speed_up:.2f}", row.baseline, f"{assumes}{detail}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"

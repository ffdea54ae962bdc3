"""The output of `laconic validate`: predictions beside measurements, as tables or as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laconic.planner.validation.claims import LARGE, NCCL, POLLUX, PUBLISHED, RUNS
from laconic.planner.validation.published_steps import GPUS, Cell
from laconic.planner.validation.sections import Recomputed
from laconic.planner.validation.step_times import Pair, Validation
from laconic.report import validation_large as large
from laconic.report import validation_sections as section
from laconic.schedule.exchange_methods import METHODS


def show_all(found: Recomputed) -> None:
    """Print each section, then what was skipped and why."""
    console = Console()
    if found.published is not None:
        show(found.published)
    parts = [
        (NCCL, found.nccl, section.nccl_table, section.nccl_lines),
        (POLLUX, found.pollux, section.pollux_table, section.pollux_lines),
        (LARGE, found.large, large.large_table, large.large_lines),
        (RUNS, found.runs, section.runs_table, section.runs_lines),
    ]
    for name, part, table, lines in parts:
        if part is not None:
            console.print(Text(f"\n{name}", style="bold"))
            console.print(table(part))  # type: ignore[operator]
            _print_lines(console, lines(part) + section.basis_lines(name))  # type: ignore[operator]
    for name, reason in found.skipped:
        console.print(Text(f"\nskipped, {name}: {reason}"), soft_wrap=True)


def all_as_json(found: Recomputed) -> str:
    """Return every section that was recomputed, what its figures rest on, and what was skipped, as JSON."""
    values: dict[str, Any] = {}
    if found.published is not None:
        values[PUBLISHED] = [_values(validation) for validation in found.published]
    if found.nccl is not None:
        values[NCCL] = section.nccl_values(found.nccl)
    if found.pollux is not None:
        values[POLLUX] = section.pollux_values(found.pollux)
    if found.large is not None:
        values[LARGE] = large.large_values(found.large)
    if found.runs is not None:
        values[RUNS] = section.runs_values(found.runs)
    basis = {name: section.basis_values(name) for name in values}
    return json.dumps({**values, "basis": basis, "skipped": dict(found.skipped)}, indent=2)


def show(found: Sequence[Validation]) -> None:
    """Print each network's table and summary, then how well predictions choose a method over all networks."""
    console = Console()
    console.print(Text(f"{PUBLISHED} (arXiv 2005.13247)", style="bold"))
    for validation in found:
        console.print(_table(validation))
        _print_lines(console, _lines(validation))
        console.print()
    _print_lines(console, [_overall(found), *section.basis_lines(PUBLISHED)])


def as_json(found: Sequence[Validation]) -> str:
    """Return the published step times alone as JSON: everything that is printed, with all wrong pairs."""
    return all_as_json(Recomputed(published=tuple(found)))


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _table(validation: Validation) -> Table:
    table = Table(
        title=f"{validation.network}: predicted samples/s (error)", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("model", "method", *(f"{gpus} GPUs" for gpus in GPUS)):
        table.add_column(heading, justify="left" if heading in ("model", "method") else "right", no_wrap=True)
    errors = {(cell.model, cell.method, cell.gpus): (cell, error) for cell, error in validation.errors}
    for model, method in dict.fromkeys((cell.model, cell.method) for cell, _ in validation.errors):
        own = [errors.get((model, method, gpus)) for gpus in GPUS]
        cells = [_cell(*found) if found else "" for found in own]
        left_out = "" if all(found is None or found[0].explained for found in own) else " *"
        table.add_row(model, method + left_out, *cells)
    return table


def _cell(cell: Cell, error: float) -> str:
    return f"{cell.measured * (1 + error):,.1f} ({100 * error:+.1f} %)"


def _lines(validation: Validation) -> list[str]:
    price, pairs = validation.between, validation.pairs
    wrong = [pair for pair in pairs if not pair.right]
    constant = min(validation.methods, key=validation.constant_regret)
    lines = [
        f"fitted, of a hop between machines: start-up {1e6 * price.startup_seconds:.1f} us, bandwidth "
        f"{1e-9 / price.seconds_per_byte:.2f} GB/s; nothing else",
        f"error of throughput: {100 * validation.mean_error:.1f} % in the mean without * (deficit unexplained), "
        f"{100 * max(abs(e) for c, e in validation.errors if c.explained):.1f} % at most, "
        f"{sum(c.explained for c, _ in validation.errors)} cells",
        f"chosen by prediction: {100 * statistics.fmean(validation.regrets):.2f} % below the best in the mean, "
        f"{100 * max(validation.regrets):.2f} % at most; always {constant}: "
        f"{100 * validation.constant_regret(constant):.2f} %",
        f"order: {len(pairs) - len(wrong)} of {len(pairs)} pairs right that differ by more than 3 standard deviations "
        f"({100 * validation.share_right(explained=True):.1f} % without *); wrong:",
    ]
    return lines + [f"  {_pair_text(pair)}" for pair in wrong]


def _pair_text(pair: Pair) -> str:
    return f"{pair.model}, {pair.gpus} GPUs: {pair.faster} is {100 * pair.by:.1f} % above {pair.slower}"


def _overall(found: Sequence[Validation]) -> str:
    regrets = [regret for validation in found for regret in validation.regrets]
    everywhere = [m for m in METHODS if all(m in v.methods for v in found)]
    constants = {m: statistics.fmean(v.constant_regret(m) for v in found) for m in everywhere}
    best = min(constants, key=constants.__getitem__, default="")
    return f"all networks: choosing by prediction costs {100 * statistics.fmean(regrets):.2f} %" + (
        f", the best constant choice ({best}) {100 * constants[best]:.2f} %" if best else ""
    )


def _values(validation: Validation) -> dict[str, Any]:
    rows = [
        {"model": c.model, "method": c.method, "gpus": c.gpus, "measured": c.measured, "deviation": c.deviation}
        | {"predicted": c.measured * (1 + e), "error": e, "counted": c.explained}
        for c, e in validation.errors
    ]
    choices = [
        {"model": p.model, "gpus": p.gpus, "chosen": p.chosen, "best": p.best, "regret": p.regret(p.chosen)}
        for p in validation.results
    ]
    return {
        "network": validation.network,
        "startup_seconds": validation.between.startup_seconds,
        "bytes_per_second": 1 / validation.between.seconds_per_byte,
        "mean_error": validation.mean_error,
        "largest_error": max(abs(error) for cell, error in validation.errors if cell.explained),
        "counted_cells": sum(cell.explained for cell, _ in validation.errors),
        "mean_regret": statistics.fmean(validation.regrets),
        "largest_regret": max(validation.regrets),
        "constant_regrets": {method: validation.constant_regret(method) for method in validation.methods},
        "pairs": len(validation.pairs),
        "wrong_pairs": [_pair_text(pair) for pair in validation.pairs if not pair.right],
        "choices": choices,
        "cells": rows,
    }

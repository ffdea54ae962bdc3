"""The output of `laconic bounds`: convergence results evaluated for one question, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from laconic.theory.preferred_method import preference, remarks
from laconic.theory.question import Question
from laconic.theory.survey import Row

_MISSING = "–"


def show(asked: Question, rows: Sequence[Row]) -> None:
    """Print what each method promises, why others are left out, and what theory prefers."""
    console = Console()
    console.print(_table(asked, [row for row in rows if not row.refused]))
    for row in rows:
        if row.refused:
            console.print(Text(f"left out  {row.technique}: {row.refused}"), soft_wrap=True)
    for line in (*_legend(asked), *remarks(asked, rows), preference(asked, rows)):
        console.print(Text(line), soft_wrap=True)


def as_json(asked: Question, rows: Sequence[Row]) -> str:
    """Return the question, every row, the remarks and the preferred method as JSON."""
    values = {"question": asdict(asked), "rows": [asdict(row) for row in rows], "remarks": remarks(asked, rows)}
    return json.dumps(values | {"preference": preference(asked, rows)}, indent=2)


def _table(asked: Question, rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ["method", "bound", "assumes", "rate", "rounds ~", "period ~", "proven", "steps to ε"]
    headings += ["GB sent"] * (asked.model_bytes is not None) + ["seconds"] * _timed(asked)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < 4 else "right", no_wrap=place in (1, 4, 5, 6, 7, 8, 9))
    for row in rows:
        about = "~" if row.order_only else ""
        cells = [row.method, row.technique.removeprefix("theory_"), row.assumes, row.rate]
        cells += [_short(row.rounds), _short(row.period), _short(row.proven_period)]
        cells += [_MISSING if row.steps_to_epsilon is None else about + _short(row.steps_to_epsilon)]
        cells += [_short((row.bytes or 0) / 1e9)] * (asked.model_bytes is not None)
        cells += [_short(row.seconds)] * _timed(asked)
        table.add_row(*map(Text, cells))
    return table


def _timed(asked: Question) -> bool:
    return asked.step_seconds is not None and asked.round_seconds is not None


def _legend(asked: Question) -> list[str]:
    return [
        "",
        f"{asked.workers} workers, {asked.iterations:,} steps each; delays {asked.tau_avg:g} on average, at most "
        f"{asked.tau_max:g}. ε = {asked.epsilon:g} bounds f - f* where convex or PL, |grad f|^2 else.",
        "~ is an order with constants 1; proven is the longest period by the paper's own constants; steps are of each "
        "worker.",
    ]


def _short(number: float | None) -> str:
    if number is None:
        return _MISSING
    return f"{number:,.0f}" if 100 <= number < 1e6 or number == int(number) < 1e6 else f"{number:.3g}"

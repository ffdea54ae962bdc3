"""Read a comparison's folder: the lines of its table, and what every row logged."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laconic.experiments.folder import NAME, Session
from laconic.experiments.measure import Line, Quantity
from laconic.experiments.outcome import RunOutcome
from laconic.experiments.settings import groups
from laconic.experiments.statistics import Spread
from laconic.reading import Source
from laconic.report.page.files import read_json, read_text
from laconic.report.page.values import Compared, ReportError


def read_comparison(folder: Path) -> Compared:
    """Read the table as it was written, and the rows' curves from the sessions in which no row failed."""
    record = read_json(folder / NAME)
    settings = record.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("command"), list):
        raise ReportError(f"{folder / NAME} does not say what was compared: it is not what `laconic compare` writes.")
    path = next((p for p in (folder / "table.csv", folder / "ablation.csv") if p.exists()), None)
    if path is None:
        raise ReportError(
            f"the comparison in {folder} has not ended: there is no table.csv in it. Let it end, or go on with the "
            f"command in its {NAME}."
        )
    content = read_text(path)
    lines = read_lines(content, str(path))
    made, legend = _words(path.with_suffix(".txt"))
    sessions = sorted((folder / "sessions").glob("*.json"), key=_natural)
    outcomes = [_outcomes(session, len(lines), settings.get("rows_at_once")) for session in sessions]
    return Compared(
        folder,
        record,
        lines,
        content,
        made,
        legend,
        tuple(tuple(session[place] for session in outcomes) for place in range(len(lines))),
        max(line.runs for line in lines) - len(sessions),
    )


def read_lines(content: str, where: str) -> tuple[Line, ...]:
    """Read the lines of a table that `laconic compare` or `laconic ablate` wrote."""
    try:
        rows = list(csv.DictReader(io.StringIO(content), strict=True))
        lines = tuple(_part(row) if "part" in row else _line(row) for row in rows)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ReportError(f"{where} is not the table of a comparison ({error!r}): compare again.") from error
    if not lines:
        raise ReportError(f"{where} has no rows: nothing was compared.")
    return lines


def _line(row: Mapping[str, str]) -> Line:
    computing, waited = _quantity(row, "computing_seconds"), _quantity(row, "waited_seconds")
    return Line(
        name=row["strategy"],
        step_seconds=_quantity(row, "step_seconds"),
        computing_seconds=None if computing is None else computing.value,
        exposed_seconds=_quantity(row, "exposed_seconds"),
        sent_bytes=_quantity(row, "sent_bytes_per_step"),
        received_bytes=_quantity(row, "received_bytes_per_step"),
        waited_seconds=None if waited is None else waited.value,
        seconds_to_target=_quantity(row, "seconds_to_target"),
        bytes_to_target=_quantity(row, "bytes_to_target"),
        reached=int(row["runs_at_target"]),
        runs=int(row["runs"]),
        final=_finals(row),
        counter=row["bytes_by"] or None,
        blocks=int(row["timed_blocks"]),
        error=row["error"] or None,
    )


def _part(row: Mapping[str, str]) -> Line:
    """Return a row of an ablation, whose table has one metric, bytes and time."""
    return Line(
        name=f"{row['part']}: {row['strategy']}",
        step_seconds=_quantity(row, "step_seconds"),
        sent_bytes=_quantity(row, "sent_bytes_per_step"),
        final=_finals(row),
        error=row["error"] or None,
    )


def _finals(row: Mapping[str, str]) -> dict[str, Quantity]:
    names = [name.removeprefix("final_") for name in row if name.startswith("final_")]
    found = {name: _quantity(row, f"final_{name}") for name in names if f"final_{name}_ratio_high" in row}
    return {name: quantity for name, quantity in found.items() if quantity is not None}


def _quantity(row: Mapping[str, str], name: str) -> Quantity | None:
    value, ratio = (
        [float(row[f"{name}{part}{end}"] or "nan") for end in ("", "_low", "_high")] for part in ("", "_ratio")
    )
    if math.isnan(value[0]):
        return None
    return Quantity(Spread(*value), None if math.isnan(ratio[0]) else Spread(*ratio))


def _words(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sentences above and below the table."""
    if not path.exists():
        return (), ()
    blocks = read_text(path).split("\n\n")
    last = [line for line in blocks[-1].splitlines() if line and not line.startswith("folder: ")]
    return tuple(blocks[0].splitlines()), tuple(last) if len(blocks) > 2 else ()


def _outcomes(path: Path, count: int, at_once: Any) -> dict[int, RunOutcome]:
    """Return one seed's outcomes by the row's place.

    In every group the row that computes alone is first, and the baseline second.
    """
    source = Source(path, "session of this comparison", "compare again.", ReportError)
    kept = source.value(read_json(path), Session)
    found: dict[int, RunOutcome] = {}
    try:
        for places, members in zip(groups(count, at_once), kept.groups, strict=True):
            for place, outcome in zip(places, members[1:], strict=True):
                found.setdefault(place, outcome)
    except ValueError as error:
        raise source.refused(f"its rows are not those of {path.parents[1] / 'table.csv'}") from error
    return found


def _natural(path: Path) -> tuple[int, str]:
    """Return a sort key that puts seed-2 before seed-10."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdigit() else -1, path.stem


def is_comparison(folder: Path) -> bool:
    return (folder / NAME).exists()

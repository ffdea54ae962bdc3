"""The section of a comparison: how it was made, its rows with medians and spread, a step's time in parts, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from laconic.experiments.measure import Line, Quantity, regime
from laconic.experiments.statistics import Spread
from laconic.report.page import breakdown, curves
from laconic.report.page.circumstances import command_line, settings_text, versions
from laconic.report.page.html import Cell, Column, Markup, el, facts, join, table, tiles
from laconic.report.page.units import MISSING, Kind, Unit, spread, times, unit_for, with_unit
from laconic.report.page.values import Compared

_PLAIN = Unit(1.0, "")


def section(compared: Compared, anchor: str) -> Markup:
    """Return the section of a comparison, which links reach as `anchor`."""
    bars = [bar for k, line in enumerate(compared.lines) if (bar := breakdown.of_line(line, k == 0)) is not None]
    logs = [
        (line.name, [outcome.logged for outcome in runs])
        for line, runs in zip(compared.lines, compared.runs, strict=True)
        if runs
    ]
    return el(
        "section",
        el("p", "Comparison", class_="kind"),
        el("h2", _script(compared.settings["command"])),
        *(
            el("p", line, class_="warn" if "NOT MADE" in line or "DEPARTS" in line else "note")
            for line in compared.made[:1]
        ),
        tiles(_figures(compared)),
        facts(_facts(compared)),
        el("h3", "Rows"),
        _table(compared, anchor),
        _failures(compared),
        breakdown.block(
            bars,
            "A step's time, measured",
            "Whiskers: the spread. Exposed: how long a worker waited for messages by its engine's account, at most "
            "what the step takes beyond computing alone; the rest of that is coding and other costs of communication.",
        ),
        curves.section(logs, f"{anchor}-curves.csv", target=_target(compared.settings)),
        _missing(compared),
        el("details", el("summary", "How to read this"), el("ul", *(el("li", line) for line in compared.legend)))
        if compared.legend
        else None,
        id=anchor,
    )


def _figures(compared: Compared) -> list[tuple[str, str, str]]:
    """Return the tiles: the fastest row by step and by target, the row that sends least, and the baseline's regime."""
    baseline, found = compared.lines[0], []
    timed = [line for line in compared.lines if line.step_seconds is not None and line.error is None]
    if timed and baseline.step_seconds is not None:
        best = min(timed, key=lambda line: line.step_seconds.value.middle)  # type: ignore[union-attr]
        assert best.step_seconds is not None
        found.append((with_unit(best.step_seconds.value.middle, "seconds"), "fastest step", best.name))
    reached = [line for line in compared.lines if line.seconds_to_target is not None and line.error is None]
    if reached:
        best = min(reached, key=lambda line: line.seconds_to_target.value.middle)  # type: ignore[union-attr]
        assert best.seconds_to_target is not None
        found.append((with_unit(best.seconds_to_target.value.middle, "seconds"), "first at the target", best.name))
    sending = [line for line in compared.lines if line.sent_bytes is not None and line.error is None]
    if sending:
        best = min(sending, key=lambda line: line.sent_bytes.value.middle)  # type: ignore[union-attr]
        assert best.sent_bytes is not None
        found.append((with_unit(best.sent_bytes.value.middle, "bytes"), "least sent in a step", best.name))
    r = regime(baseline)
    if r is not None:
        found.append((f"r = {r:.2f}", "the regime", "exposed over computing of the baseline"))
    return found


def _facts(compared: Compared) -> list[tuple[str, str | None]]:
    record, settings = compared.record, compared.settings
    machine = record.get("machine")
    names = [machine.get("name"), machine.get("system")] if isinstance(machine, dict) else []
    target = _target(settings)
    return [
        ("command", command_line(record.get("command"))),
        ("workers", str(settings.get("workers", MISSING))),
        ("network", settings_text(settings)),
        ("baseline", compared.lines[0].name),
        ("seeds", _seeds(settings)),
        ("target", f"{target[0]} = {target[1]:g}" if target else None),
        ("outcome", _outcome(compared)),
        ("versions", versions(record)),
        ("machine", ", ".join(str(name) for name in names if name)),
        ("folder", str(compared.folder)),
    ]


def _script(words: Sequence[object]) -> str:
    return " ".join([PurePath(str(words[0])).name, *(str(word) for word in words[1:])]) if words else "a comparison"


def _outcome(compared: Compared) -> str:
    failed = sum(line.error is not None for line in compared.lines)
    return f"{failed} of {len(compared.lines)} rows failed" if failed else f"all {len(compared.lines)} rows ended well"


def _seeds(settings: Mapping[str, Any]) -> str | None:
    tuning = settings.get("tuning")
    seeds = tuning.get("reporting_seeds") if isinstance(tuning, dict) else settings.get("seeds")
    return ", ".join(map(str, seeds)) if seeds else None


def _target(settings: Mapping[str, Any]) -> tuple[str, float] | None:
    target = settings.get("target")
    if not isinstance(target, list) or len(target) != 2 or not isinstance(target[1], int | float):
        return None
    return str(target[0]), float(target[1])


# ------------------------------------------------------------------------------------------------ the table


def _table(compared: Compared, anchor: str) -> Markup:
    lines = compared.lines
    metrics = list(dict.fromkeys(name for line in lines for name in line.final))
    wanted: list[tuple[str, str, Kind, str | None]] = [
        ("step_seconds", "step", "seconds", "of the slowest worker, with what the script does between steps"),
        ("exposed_seconds", "exposed", "seconds", "a step less computing alone"),
        ("sent_bytes", "sent", "bytes", "by one worker in a step"),
        ("seconds_to_target", "to target", "seconds", None),
        ("bytes_to_target", "to target", "bytes", "in both directions"),
    ]
    columns = [Column("strategy", "code")]
    rows = [[Cell(line.name, place)] for place, line in enumerate(lines)]
    for name, heading, kind, about in wanted:
        found = [getattr(line, name) for line in lines]
        if any(quantity is not None for quantity in found):
            _add(columns, rows, lines, found, unit_for(map(_middle, found), kind), heading, about)
    for metric in metrics[:3]:
        _add(columns, rows, lines, [line.final.get(metric) for line in lines], _PLAIN, f"final {metric}", None)
    return table("Rows, the baseline first", columns, rows, compared.table_csv, f"{anchor}.csv")


def _add(
    columns: list[Column],
    rows: list[list[Cell]],
    lines: tuple[Line, ...],
    found: list[Quantity | None],
    unit: Unit,
    heading: str,
    about: str | None,
) -> None:
    """Add two columns: a quantity, and its ratio to the baseline's."""
    columns += [Column(unit.heading(heading), about=about), Column("×", about=f"{heading} over the baseline's")]
    for row, line, quantity in zip(rows, lines, found, strict=True):
        if quantity is None:
            row += [Cell(_unreached(line) if "target" in heading else MISSING, None, "quiet"), Cell(MISSING)]
            continue
        v, r = quantity.value, quantity.ratio
        row.append(Cell(spread(unit, v.middle, v.low, v.high), v.middle))
        row.append(Cell(MISSING) if r is None else Cell(times(r.middle), r.middle, _mark(heading, r)))


def _mark(heading: str, ratio: Spread) -> str | None:
    """Return "good" where the whole spread of the ratio is below 1; for a metric, which way is better is unknown."""
    most = ratio.middle if math.isnan(ratio.high) else ratio.high
    return "good" if not heading.startswith("final") and most < 0.995 else None


def _unreached(line: Line) -> str:
    if line.reached == line.runs:
        return MISSING
    return "not reached" if line.runs == 1 else f"{line.reached} of {line.runs} runs"


def _middle(quantity: Quantity | None) -> float | None:
    return None if quantity is None else quantity.value.middle


def _failures(compared: Compared) -> Markup | None:
    failed = [el("li", el("code", line.name), ": ", line.error) for line in compared.lines if line.error is not None]
    return el("div", el("h3", "Failed"), el("ul", *failed), class_="block failed") if failed else None


def _missing(compared: Compared) -> Markup | None:
    if compared.missing <= 0:
        return None
    what = "the seed" if compared.missing == 1 else f"{compared.missing} seeds"
    note = f"Without curves of {what} in which a row failed: a comparison keeps those of whole sessions only."
    return el("p", join([note]), class_="note")

"""The page of `laconic frontier`: the map, curves of time, the tables with their guards, orderings and the raw rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from math import log

from laconic.frontier.answer import PROTOCOL, Frontier
from laconic.frontier.map import Map
from laconic.frontier.shapes import CHIP, Shape, write_size
from laconic.frontier.tables import Table
from laconic.planner.runs import Run
from laconic.report.page import frontier_curves, frontier_map
from laconic.report.page.document import Chapter, document
from laconic.report.page.frontier_cells import (
    LINE_COLUMNS,
    OFFER_COLUMNS,
    about,
    line_cells,
    offer_cells,
    spread,
    warnings,
)
from laconic.report.page.html import Cell, Column, Markup, as_csv, el, facts, prose, table
from laconic.report.page.units import MISSING

_RAW = [field.name for field in fields(Run) if field.name != "curve"]
_SHOWN = ("rung", "sentence", "optimizer", "workers", "purpose", "lr", "seed", "steps", "loss", "bytes", "seconds")


def render(found: Frontier, now: datetime | None = None) -> str:
    """Return the page as text."""
    chapters: list[Chapter] = [("map", "Map", _map(found))]
    for place, one in enumerate(found.tables, 1):
        chapters.append((f"table-{place}", one.title, _table(one, f"table-{place}")))
    chapters += [("orderings", "Orderings", _orderings(found)), ("rows", "Raw rows", _rows(found.tables))]
    runs = sum(len(one.runs) for one in found.tables)
    title = f"The low-communication frontier: {found.task}"
    footer = "Losses are measured trainings, bytes those that one worker sent, times predictions of the planner."
    return document(title, f"{runs} runs", chapters, footer, now)


def _section(kind: str, title: str, anchor: str, *content: Markup | None) -> Markup:
    return el("section", el("p", kind, class_="kind"), el("h2", title), *content, id=anchor)


def _map(found: Frontier) -> Markup:
    verdict = el("p", prose(found.verdict), class_="verdict")
    if found.map is None or found.here is None:
        return _section("Map", "Where communicating less pays", "map", verdict)
    drawn = found.map
    sizes = list(dict.fromkeys(cell.size for cell in drawn.cells))
    asked = min(sizes, key=lambda size: abs(log(size / found.size)))
    measured = max((size for size in sizes if size <= 1.1 * drawn.measured_up_to), default=sizes[0])
    chosen = sorted({measured, asked, sizes[-1]})
    shape = Shape(found.size, found.workers)
    rows = [_cells(offer_cells(offer), first=offer is found.here.best) for offer in found.here.offers]
    return _section(
        "Map",
        "Where communicating less pays",
        "map",
        verdict,
        frontier_map.block(drawn),
        frontier_curves.block(drawn, chosen, list(frontier_map.signs(drawn))),
        el("h3", f"At {found.place}"),
        _plain_table(f"Methods at {found.place}", OFFER_COLUMNS, rows, "here.csv"),
        facts(
            [
                ("model", f"{shape.layers} layers of {shape.hidden}, {shape.context} tokens of context"),
                ("batch", f"{shape.tokens_per_step:,.0f} tokens a step of all workers"),
                ("worker", f"{shape.gpus} {CHIP}" + ("" if shape.gpus == 1 else ", counted as one")),
                ("step without communication", f"{found.here.computing_seconds:.3g} s"),
                ("step of DDP, 16 bits", f"{found.here.ddp.seconds:.3g} s"),
            ]
        ),
        _trends(drawn),
        _notes(found.notes),
    )


def _trends(drawn: Map) -> Markup:
    """Return the trends on which the map's upper part rests."""
    rows = []
    for one in drawn.contenders:
        gaps = ", ".join(f"{100 * rung.gap:+.2f} at {write_size(rung.parameters)}" for rung in one.trend.rungs)
        slope = one.trend.slope
        half = MISSING if slope is None else f"{100 * slope:+.2f} ± {100 * one.trend.slope_half:.2f}"
        at = one.trend.at(70e9)
        far = f"{100 * at.middle:+.2f} [{100 * at.low:+.2f} to {100 * at.high:+.2f}]"
        rows.append([Cell(one.name), Cell(gaps), Cell(half, slope), Cell(far, at.middle)])
    columns = [Column("method", "code"), Column("gap % by size", "text"), Column("% for each tenfold size")]
    columns.append(Column("gap % taken at 70 B"))
    csv = as_csv([column.heading for column in columns], [[cell.shown for cell in row] for row in rows])
    note = (
        "Beyond the largest model that was trained, a gap that grows is continued by as much for each tenfold size, "
        "and one that shrinks by the same share; the upper end of its interval never shrinks."
    )
    made = table("Trends of the gap", columns, rows, csv, "trends.csv")
    return el("div", el("h3", "What is extrapolated"), made, el("p", note, class_="note"), class_="block")


def _table(one: Table, anchor: str) -> Markup:
    rows = [_cells(line_cells(one, line), first=line is one.main) for line in one.lines]
    found = list(warnings(one))
    listed = el("ul", *(el("li", warning) for warning in found)) if found else None
    return _section(
        "Table",
        one.title,
        anchor,
        el("p", PROTOCOL, class_="warn"),
        el("p", f"{about(one)}.", class_="note"),
        _plain_table(one.title, LINE_COLUMNS, rows, f"{anchor}.csv"),
        el(
            "p",
            "Gaps are to DDP under the same optimizer, paired by seed, with bootstrap intervals; tokens are the share "
            "on which DDP reaches the same loss (~: beyond the shares that were run); bytes are those for a sample, "
            "over those of DDP with 16-bit gradients.",
            class_="note",
        ),
        None if listed is None else el("details", el("summary", f"{len(found)} warnings"), listed, open=True),
    )


def _orderings(found: Frontier) -> Markup:
    rows = []
    for one in found.judged:
        rows.append([Cell(one.name), Cell(one.verdict, None, _mark(one.verdict)), *(Cell("") for _ in range(4))])
        for pair in one.pairs:
            difference = MISSING if pair.difference is None else spread(pair.difference, 0.01, 3)
            fewer = "" if pair.fewer_bytes is None else f"{pair.fewer_bytes:.3g} × fewer bytes"
            cells = [f"· {pair.where}", pair.verdict, pair.better, pair.worse, difference, fewer]
            rows.append([Cell(cell) for cell in cells])
    columns = [Column("ordering", "text"), Column("verdict", "text"), Column("should be better", "text")]
    columns += [Column("should be worse", "text"), Column("loss, difference in % [95 %]"), Column("", "text")]
    csv = as_csv([column.heading for column in columns], [[cell.shown for cell in row] for row in rows])
    note = (
        "Pairs are judged over common seeds by Student's t: an ordering holds where all of its pairs do, and is "
        "refuted where one is. “No worse” allows half a percent."
    )
    return _section(
        "Orderings",
        "What the literature says, and what was measured",
        "orderings",
        table("Orderings", columns, rows, csv, "orderings.csv"),
        el("p", note, class_="note"),
        _short(found),
    )


def _short(found: Frontier) -> Markup | None:
    if not found.short:
        return None
    headings = ("table", "% of the steps", "methods", "rank correlation", "chosen", "best", "regret %")
    rows = [
        _cells(
            [
                *(one.title, f"{100 * short.share:.3g}", str(short.methods)),
                MISSING if short.correlation is None else f"{short.correlation:.2f}",
                *(short.chosen.name, short.best.name, f"{100 * short.regret:.2f}"),
            ]
        )
        for one, short in found.short
    ]
    return el(
        "div",
        el("h3", "Do short runs predict long ones?"),
        _plain_table("Short runs", headings, rows, "short.csv"),
        class_="block",
    )


def _rows(tables: Sequence[Table]) -> Markup:
    runs = [run for one in tables for run in one.runs]
    shown = [_cells([_value(getattr(run, name)) for name in _SHOWN]) for run in runs]
    csv = as_csv(_RAW, [[getattr(run, name) for name in _RAW] for run in runs])
    columns = [Column(name, "code" if place == 0 else "text") for place, name in enumerate(_SHOWN)]
    made = table("Runs", columns, shown, csv, "runs.csv")
    commands = sorted({f"{run.command} ({run.commit}, torch {run.torch}, {run.device})" for run in runs})
    return _section(
        "Rows",
        "Raw rows",
        "rows",
        el("p", "Every run, as it was kept; the CSV has all fields.", class_="note"),
        el("details", el("summary", f"{len(runs)} runs"), made),
        el("details", el("summary", "commands"), el("ul", *(el("li", el("code", command)) for command in commands))),
    )


def _notes(notes: Sequence[str]) -> Markup | None:
    if not notes:
        return None
    listed = el("ul", *(el("li", prose(note)) for note in notes))
    return el("div", el("h3", "Where bytes disagree with the ledger"), listed, class_="block")


def _plain_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[Cell]], filename: str) -> Markup:
    columns = [Column(heading, "code" if place == 0 else "number") for place, heading in enumerate(headings)]
    return table(caption, columns, rows, as_csv(headings, [[cell.shown for cell in row] for row in rows]), filename)


def _cells(shown: Sequence[str], first: bool = False) -> list[Cell]:
    """Return the cells of a row, numbers with a key to sort by; the first row's name may be marked as the best."""
    return [Cell(text, _key(text), "best" if first and place == 0 else None) for place, text in enumerate(shown)]


def _key(text: str) -> float | None:
    try:
        return float(text.strip("~× ").replace(",", "").split(" ")[0])
    except ValueError:
        return None


def _mark(verdict: str) -> str:
    return {"holds": "good", "refuted": "bad"}.get(verdict, "quiet")


def _value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else MISSING if value is None else str(value)

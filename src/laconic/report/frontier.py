"""The output of `laconic frontier`: the tables of measured trainings, the asked place and the map, as text or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from laconic.files import write_text
from laconic.frontier.answer import PROTOCOL, Frontier, answer
from laconic.frontier.map import Map
from laconic.frontier.shapes import write_size
from laconic.report.frontier_json import to_json
from laconic.report.page.frontier import render
from laconic.report.page.frontier_cells import LINE_COLUMNS, OFFER_COLUMNS, about, line_cells, offer_cells, warnings
from laconic.report.page.frontier_map import letter, signs
from laconic.units import write_rate

_PIPED = 160  # columns, where standard output is no terminal


def run(task: str, network: str, workers: int, size: str, out: Path | None, as_json: bool, folder: Path) -> None:
    """Answer with the options of the command line: print the tables or JSON, and write the page if one is asked for."""
    found = answer(task, network, workers, size, folder)
    if out is not None:
        write_text(out, render(found))
    if as_json:
        sys.stdout.write(to_json(found))
        return
    show(found)
    if out is not None:
        print(out)


def show(found: Frontier, console: Console | None = None) -> None:
    """Print every table, the orderings, the asked place, the map as letters, and the verdict."""
    console = console or Console(width=None if sys.stdout.isatty() else _PIPED)

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    say(PROTOCOL, "dim")
    for table in found.tables:
        say(f"\n{about(table)}", "bold")
        if not table.lines:
            say("  nothing is reported yet")
            continue
        console.print(_grid(LINE_COLUMNS, [line_cells(table, line) for line in table.lines]))
        for warning in warnings(table):
            say(f"  {warning}", "yellow")
    say("\nOrderings", "bold")
    console.print(_grid(("ordering", "verdict", "pairs"), list(orderings(found))))
    for table, one in found.short:
        say(
            f"{table.title}: among {one.methods} methods within 5 % of DDP, itself included, choosing by runs of "
            f"{100 * one.share:.3g} % of the steps costs {100 * one.regret:.2f} % of loss; {one.ranked}."
        )
    if found.here is not None:
        say(f"\nTime to the loss of tuned DDP at {found.place}", "bold")
        console.print(_grid(OFFER_COLUMNS, [offer_cells(offer) for offer in found.here.offers]))
    if found.map is not None:
        say("\nThe fastest method for certain to the loss of tuned DDP (· nothing pays)", "bold")
        for line in letters(found.map):
            say(line)
    say("")
    say(found.verdict)
    for note in found.notes:
        say(f"  {note}", "dim")


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        grid.add_column(heading, justify="left" if place == 0 else "right", overflow="fold", no_wrap=place > 0)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def orderings(found: Frontier) -> Iterator[list[str]]:
    for one in found.judged:
        counts = {verdict: sum(pair.verdict == verdict for pair in one.pairs) for verdict in ("holds", "refuted")}
        pairs = f"{counts['holds']} hold, {counts['refuted']} refute, of {len(one.pairs)}" if one.pairs else ""
        yield [one.name, one.verdict, pairs]


def letters(drawn: Map) -> list[str]:
    """Return the map as lines of text: a letter for the method that wins a cell, and a legend."""
    known = signs(drawn)
    rates = list(dict.fromkeys(cell.bits_per_second for cell in drawn.cells))
    sizes = list(dict.fromkeys(cell.size for cell in drawn.cells))
    lines = [" " * 5 + "".join(f"{write_rate(rate):>10}" for rate in rates[::2])]
    for size in sizes:
        row = [drawn.cell(rate, size).best for rate in rates]
        row_signs = "".join(f"{'·' if best is None else letter(known[best.name]):>4} " for best in row)
        lines.append(f"{write_size(size):>8}{'*' if size > 1.1 * drawn.measured_up_to else ' '}{row_signs}")
    lines += [f"  {letter(place)}  {name}" for name, place in known.items()]
    return [*lines, f"  *  the loss is extrapolated from models of up to {write_size(drawn.measured_up_to)}"]

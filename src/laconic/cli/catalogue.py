"""`laconic list` and `laconic show`: what the registry holds."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, cast

import typer

from laconic.errors import StrategyError

if TYPE_CHECKING:
    from rich.table import Table

    from laconic.registry import Entry

_LINE = 68  # characters of a summary where the output is piped


def register(app: typer.Typer) -> None:
    """Add both commands to the tool."""
    app.command("list")(list_techniques)
    app.command("show")(show_technique)


def list_techniques(
    axis: Annotated[str | None, typer.Argument(help="Only this axis, such as sync or compression.")] = None,
    grade: Annotated[
        str | None, typer.Option(help="Only this grade of evidence, such as fixture or published.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rivals: Annotated[bool, typer.Option("--rivals", help="Other libraries' methods, to compare with.")] = False,
) -> None:
    """List every technique, with its paper and the evidence that it does what the paper says."""
    from laconic import registry

    if rivals:
        _list_rivals()
        return
    known = registry.AXES + registry.OTHER_AXES
    if axis is not None and axis.lower() not in known:
        raise StrategyError(f'"{axis}" is no axis; write one of {", ".join(known)}')
    if grade is not None and grade.lower() not in list(registry.Evidence):
        raise StrategyError(f'"{grade}" is no grade of evidence; write one of {", ".join(registry.Evidence)}')
    on_axis = registry.entries(None if axis is None else axis.lower())
    entries = tuple(entry for entry in on_axis if grade is None or entry.evidence == grade.lower())
    if as_json:
        print(json.dumps([_record(entry) for entry in entries], indent=2))
    elif not on_axis:
        filled = [name for name in known if registry.entries(name)]
        print(f"nothing is registered on the axis {axis} yet; there is something on {', '.join(filled)}")
    elif sys.stdout.isatty():
        _print(_table(entries))
        print(f"\n{_counted(entries)}")
    else:
        for entry in entries:
            print(_line(entry))
        print(_counted(entries), file=sys.stderr)  # what is piped has a technique in every line


def show_technique(name: Annotated[str, typer.Argument(help="A technique or one of its aliases.")]) -> None:
    """Show one technique: its paper, knobs, claims and what it does."""
    from laconic import registry
    from laconic.experiments.rivals.text import is_rival, parse

    if is_rival(name):
        rival = type(parse(name))
        print(f"{rival.name}: {rival.summary()}\n\nknobs:", *_knob_lines(rival), sep="\n  ")
        return
    entry = registry.find(name)
    print(f"{entry.name}: {entry.kind} of {entry.axis}\n\n{entry.doc}\n")
    facts = {"formula": entry.formula, "paper": entry.paper, "evidence": entry.evidence}
    facts |= {"reproduces": entry.reproduces, "holds": entry.holds, "aliases": ", ".join(entry.aliases)}
    facts |= {"plan tries": "; ".join(entry.worth_trying), "module": entry.module}
    facts["no word"] = entry.why_no_word
    if isinstance(entry.target, str):
        facts["stands for"] = entry.target
    facts["gathered"] = _crossover(entry)
    for label, fact in facts.items():
        if fact:
            print(f"{label + ':':<12}{fact}")
    if entry.kind == "word" and (lines := _knob_lines(cast(type, entry.target))):
        print("\nknobs:", *lines, sep="\n  ")
    if entry.kind == "function" and (command := _command(entry)):
        print(f"\nrun it: {command}")
    if entry.claims:
        print("\nclaims:", *map(_claim, entry.claims), sep="\n  ")


def _crossover(entry: Entry) -> str:
    """From how many workers on a dense exchange is cheaper, for a compressor whose payloads are gathered."""
    from laconic.errors import LaconicError
    from laconic.planner.crossover import TYPICAL, crossover_note
    from laconic.strategy import Strategy

    if entry.axis != "compression" or entry.kind == "function":
        return ""
    try:
        note = crossover_note(Strategy.parse(entry.name), [TYPICAL])
    except LaconicError:  # a word that stands behind others only, or needs to be told more
        return ""
    return "" if note is None else f"{note} (for a matrix of {' x '.join(map(str, TYPICAL.shape))})"


def _command(entry: Entry) -> str:
    """An example of the command that runs a registered function, or nothing where none does."""
    from laconic.planner.iteration_models import MODELS

    return "laconic iteration resnet50 --gpu v100 --workers 8 --network 10gbit" if entry.target in MODELS else ""


def _list_rivals() -> None:
    from laconic.experiments.rivals.text import RIVALS

    for name, rival in RIVALS.items():
        print(f"{name:<22}{rival.summary()}")


def _record(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "axis": entry.axis,
        "kind": entry.kind,
        "paper": entry.paper,
        "evidence": entry.evidence,
        "reproduces": entry.reproduces,
        "holds": entry.holds,
        "aliases": list(entry.aliases),
        "summary": entry.summary,
        "why_no_word": entry.why_no_word,
    }


def _marked(entry: Entry) -> str:
    """Return a summary that says whether a technique can stand in a sentence."""
    return f"(no word) {entry.summary}" if entry.kind == "function" else entry.summary


def _counted(entries: tuple[Entry, ...]) -> str:
    """Return how many techniques have each grade of evidence, the strongest first."""
    from laconic.registry import Evidence

    counts = Counter(entry.evidence for entry in entries)
    techniques = "technique" if len(entries) == 1 else "techniques"
    return f"{len(entries)} {techniques}: {', '.join(f'{counts[grade]} {grade}' for grade in Evidence)}"


def _line(entry: Entry) -> str:
    return f"{entry.name:<24} {entry.axis:<13} {entry.evidence:<12} {_short(_marked(entry))}"


def _short(summary: str) -> str:
    """Return a summary for one line of piped output."""
    return summary if len(summary) <= _LINE else f"{summary[: _LINE - 2].rsplit(' ', 1)[0]} …"


def _table(entries: tuple[Entry, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "axis", "kind", "evidence"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it does", ratio=1)
    for entry in entries:
        why = f"\nNo word: {entry.why_no_word}" if entry.why_no_word else ""
        cells = (entry.name, entry.axis, entry.kind, entry.evidence, entry.summary + why)
        table.add_row(*map(Text, cells))
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _knob_lines(word: type) -> list[str]:
    from laconic.knobs import knobs

    lines = []
    for knob in knobs(word):
        default = "required" if knob.default is MISSING else f"default {knob.write(knob.default)}"
        doc = f": {knob.bounds.doc}" if knob.bounds.doc else ""
        lines.append(f"{knob.name}{doc} ({knob}; {default})")
    return lines


def _claim(claim: object) -> str:
    """Return a claim's name and the first line of its class's docstring, which states the promise."""
    if isinstance(claim, str):
        return claim
    promise = (type(claim).__doc__ or "").partition("\n")[0]
    return f"{type(claim).__name__}: {promise}"

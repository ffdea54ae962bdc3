"""`laconic check`: the property suite on somebody's technique."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("check")(check)


def check(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A Python file or a module with techniques; or one word, such as `topk(0.1)` or mine.py:Mine.",
        ),
    ],
    real: Annotated[
        bool, typer.Option("--real/--no-real", help="Also train on two real processes, and compare with virtual ones.")
    ] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check what techniques declare against what they do, and print what holds, what does not, and the smallest
    counter-example. Ends with exit code 1 if something does not hold."""
    from laconic.check.suite import check as check_all
    from laconic.report.check import as_json, lines

    found = []
    for checked in check_all(source, real):
        found.append(checked)
        if not json_:
            typer.echo(lines(checked))
    if json_:
        typer.echo(as_json(found))
    if not all(checked.holds for checked in found):
        raise typer.Exit(1)

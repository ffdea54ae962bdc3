"""`laconic report`: one HTML page about runs, comparisons and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("report")(report)


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…", help="Folders of `laconic run` and `laconic compare`, files of `laconic plan --json`."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; default: report.html in the first folder, or in the current one."),
    ] = None,
) -> None:
    """Write one HTML page: tables, curves, where a step's time goes, timelines, predicted against measured.

    It holds everything it shows: it opens without a server or a network, and can be sent to others.
    """
    from laconic.report.page.page import write

    typer.echo(write(inputs, out))

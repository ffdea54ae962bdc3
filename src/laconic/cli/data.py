"""`laconic data`: published measurements that `validate` and tests can use, and where to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("data")(data)


def data(
    folder: Annotated[
        Path | None, typer.Option("--data", envvar="LACONIC_DATA", help="Folder of published measurements.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the published measurements that `validate`, tests and examples can use, and which of them are at hand.

    They are other people's, so none ships with laconic: each is listed with its public source, licence and path.
    """
    from laconic.planner.validation.datasets import folder_of
    from laconic.report.data import as_json as written
    from laconic.report.data import shown

    found = folder_of(folder)
    typer.echo(written(found) if as_json else shown(found))

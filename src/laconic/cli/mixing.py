"""`laconic mixing`: properties of a topology's mixing weights, without running anything."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("mixing")(mixing)


def mixing(
    topologies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPOLOGY]...", help="Topologies such as ring or 'star(0.2)'; default: all."),
    ] = None,
    workers: Annotated[list[int] | None, typer.Option(help="Number of workers; repeat for several. Default 8.")] = None,
    matrix: Annotated[bool, typer.Option("--matrix", help="Print the weights themselves too.")] = False,
) -> None:
    """Show degree, bytes, spectrum and spectral gap of the graphs along which workers gossip."""
    from laconic.report.mixing import show

    show(topologies or [], workers or [8], matrix)

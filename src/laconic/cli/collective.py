"""`laconic collective`: all-reduces and other collectives as programs of sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_Name = Annotated[str, typer.Argument(metavar="PROGRAM", help="A program, as `laconic collective list` names it.")]
_Workers = Annotated[int, typer.Option(help="Number of ranks.")]
_Inside = Annotated[int, typer.Option(help="How many neighbouring ranks share a host.")]
_Bytes = Annotated[float, typer.Option("--bytes", help="Bytes of a rank's vector.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the tool."""
    collective = typer.Typer(
        help="Look at collectives as programs of sends: each is proved right, priced on a network, drawn.",
        no_args_is_help=True,
    )
    collective.command("list")(list_programs)
    for command in (show, price, draw):
        collective.command(command.__name__)(command)
    app.add_typer(collective, name="collective")


def list_programs() -> None:
    """List the programs, with the collective that each is for."""
    from laconic.report.collective import print_list

    print_list()


def show(name: _Name, workers: _Workers = 4, inside: _Inside = 1) -> None:
    """Show a program's steps, what each rank sends, and that it is proved."""
    from laconic.report.collective import print_program

    print_program(name, workers, inside)


def price(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PROGRAM]...", help="Programs; default: all for an all-reduce.")
    ] = None,
    workers: _Workers = 8,
    inside: Annotated[
        int | None, typer.Option(help="How many neighbouring ranks share a host; default: what the network says.")
    ] = None,
    network: Annotated[str, typer.Option(help="A rate as 1gbit, or a .toml file with levels.")] = "1gbit",
    nbytes: _Bytes = 8e6,
) -> None:
    """Price programs on a network, the fastest first."""
    from laconic.report.collective import print_prices

    print_prices(names, workers, inside, network, nbytes)


def draw(
    name: _Name,
    workers: _Workers = 4,
    inside: _Inside = 1,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML page to write.")] = Path("collective.html"),
) -> None:
    """Draw a program's steps as a picture, on one HTML page."""
    from laconic.report.collective import write_page

    write_page(name, workers, inside, out)

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
        help="Look at collectives as programs of sends: each is proved right, priced on a network, run, drawn.",
        no_args_is_help=True,
    )
    collective.command("list")(list_programs)
    for command in (show, price, verify, run, draw):
        collective.command(command.__name__)(command)
    app.add_typer(collective, name="collective")


def list_programs() -> None:
    """List the programs, with the collective that each is for."""
    from laconic.report.collective import print_list

    print_list()


def show(
    name: _Name,
    workers: _Workers = 4,
    inside: _Inside = 1,
    form: Annotated[
        str, typer.Option("--as", help="text, json, msccl (MSCCL's XML) or mscclpp (a plan of MSCCL++).")
    ] = "text",
) -> None:
    """Show a program: its steps and what each rank sends, or a file of it for other tools."""
    from laconic.report.collective import print_program

    print_program(name, workers, inside, form)


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


def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Programs as JSON or as MSCCL's XML.")],
) -> None:
    """Prove that programs do what their collectives say, or say which rank ends without what."""
    from laconic.report.collective import verify_files

    verify_files(files)


def run(
    name: _Name,
    workers: _Workers = 4,
    inside: _Inside = 1,
    nbytes: _Bytes = 8e6,
    repeats: Annotated[int, typer.Option(min=1, help="How often vectors are summed; the median counts.")] = 5,
    network: Annotated[
        str | None,
        typer.Option(help="A rate as 100mbit: processes get links of it, which needs root; default: the loopback."),
    ] = None,
) -> None:
    """Carry a program out between processes of this machine: check the sum, and compare its time with its price."""
    from laconic.report.collective_run import print_run

    print_run(name, workers, inside, nbytes, repeats, network)


def draw(
    name: _Name,
    workers: _Workers = 4,
    inside: _Inside = 1,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML page to write.")] = Path("collective.html"),
) -> None:
    """Draw a program's steps as a picture, on one HTML page."""
    from laconic.report.collective import write_page

    write_page(name, workers, inside, out)

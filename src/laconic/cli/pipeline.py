"""`laconic pipeline`: schedules of pipelines, as lists of what each device computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_Schedule = Annotated[
    str, typer.Argument(metavar="SCHEDULE", help="A schedule, such as one_f_one_b or interleaved_1f1b(chunks=2).")
]
_Devices = Annotated[int, typer.Option(min=1, help="Number of devices.")]
_Microbatches = Annotated[int, typer.Option(min=1, help="Number of microbatches.")]
_Forward = Annotated[float, typer.Option(help="Milliseconds in which the whole model passes a microbatch forward.")]
_Backward = Annotated[float, typer.Option(help="Milliseconds in which the whole model passes a microbatch backward.")]
_Activation = Annotated[float, typer.Option(help="Megabytes between two stages for a microbatch.")]
_Network = Annotated[
    str | None, typer.Option(help="A rate as 1gbit, or a .toml file with levels; without it messages take no time.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the tool."""
    pipeline = typer.Typer(
        help="Look at pipelines as data: each order is verified, priced on a network, drawn as bars.",
        no_args_is_help=True,
    )
    pipeline.command("list")(list_schedules)
    for command in (show, price, draw):
        pipeline.command(command.__name__)(command)
    app.add_typer(pipeline, name="pipeline")


def list_schedules() -> None:
    """List the schedules."""
    from laconic.report.pipeline import print_list

    print_list()


def show(schedule: _Schedule, devices: _Devices = 4, microbatches: _Microbatches = 8) -> None:
    """Show what each device does in order: F forward, B backward, I and W its two parts, R again, U update."""
    from laconic.report.pipeline import print_orders

    print_orders(schedule, devices, microbatches)


def price(
    schedules: Annotated[
        list[str] | None, typer.Argument(metavar="[SCHEDULE]...", help="Schedules; default: all that fit.")
    ] = None,
    devices: _Devices = 4,
    microbatches: _Microbatches = 8,
    forward: _Forward = 40.0,
    backward: _Backward = 80.0,
    activation: _Activation = 0.0,
    network: _Network = None,
) -> None:
    """Price schedules for a model whose stages are equal, the fastest first."""
    from laconic.report.pipeline import print_prices

    print_prices(schedules, devices, microbatches, forward / 1e3, backward / 1e3, activation * 1e6, network)


def draw(
    schedule: _Schedule,
    devices: _Devices = 4,
    microbatches: _Microbatches = 8,
    forward: _Forward = 40.0,
    backward: _Backward = 80.0,
    activation: _Activation = 0.0,
    network: _Network = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML page to write.")] = Path("pipeline.html"),
) -> None:
    """Draw when each device does what, as a page."""
    from laconic.report.pipeline import write_page

    write_page(schedule, devices, microbatches, forward / 1e3, backward / 1e3, activation * 1e6, network, out)

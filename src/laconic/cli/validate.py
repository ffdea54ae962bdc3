"""`laconic validate`: what the models say, held against what others have measured and published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("validate")(validate)


def validate(
    data: Annotated[
        Path | None, typer.Option(envvar="LACONIC_DATA", help="Folder of published measurements: ddl-benchmarks/.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Only this network of the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Predict published step times from two fitted numbers for each network, and say how far off that is.

    Seven methods, three models, 4 to 32 GPUs (arXiv 2005.13247): errors, what choosing a method by prediction costs,
    and whether predicted orders are the measured ones. Takes some seconds a network.
    """
    from laconic.errors import LaconicError
    from laconic.report import validation as report
    from laconic.schedule.published import read
    from laconic.schedule.validation import validate as recompute

    if data is None:
        raise LaconicError(
            "set LACONIC_DATA (or --data) to the folder of published measurements that holds ddl-benchmarks/"
        )
    experiments = read(data)
    if network is not None and network not in experiments.networks:
        raise LaconicError(f"no network {network!r} in the table; it has {', '.join(experiments.networks)}")
    found = [recompute(experiments, name) for name in experiments.networks if network in (None, name)]
    if as_json:
        typer.echo(report.as_json(found))
    else:
        report.show(found)

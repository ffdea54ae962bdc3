"""`laconic validate`: predictions of the cost models compared with measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("validate")(validate)


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="LACONIC_DATA", help="Folder of published measurements: ddl-benchmarks/, nccl/, pollux/, vtrain/."
        ),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(
            help='Only this section: "published step times", "nccl", "pollux", "large models" or "real runs"; '
            "may be repeated."
        ),
    ] = None,
    network: Annotated[str | None, typer.Option(help="Only this network of the published step times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Recompute the claimed accuracy of the cost models; report what was fitted and what other tools claim.

    Published step times of seven methods (arXiv 2005.13247), NCCL's collectives with sizes and GPU counts left out,
    steps to a target with Pollux's batch sizes left out, iterations of large transformers, and step times of real
    runs. Each network takes some seconds.
    """
    from laconic.planner.validation.claims import PUBLISHED, SECTIONS
    from laconic.planner.validation.sections import named, recompute
    from laconic.report import validation as report

    names = [named(text) for text in section] if section else [PUBLISHED] if network is not None else SECTIONS
    found = recompute(data, names, network)
    if as_json:
        typer.echo(report.all_as_json(found))
    else:
        report.show_all(found)

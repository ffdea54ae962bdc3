"""`laconic frontier`: which method reaches tuned DDP's loss first, by measured trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("frontier")(frontier)


def frontier(
    task: Annotated[str, typer.Option(help="What was trained: bytes, bpe, cifar, recommender …")] = "bytes",
    network: Annotated[str, typer.Option(help="The rate of each worker's link, as 1gbit.")] = "1gbit",
    workers: Annotated[int, typer.Option(help="Number of workers; losses are measured on so many.")] = 8,
    size: Annotated[str, typer.Option(help="Parameters of the model, 3m to 70b.")] = "1b",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one HTML page with the map, curves, tables and the raw rows."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Read rows of trainings (*.jsonl) from here; default: those shipped."),
    ] = None,
) -> None:
    """Show what methods do to loss, bytes and time, and where on the map of networks and sizes none of them pays.

    Losses are measured trainings, bytes are the ledger's, times the planner's. Beyond the largest model that was
    trained the loss is extrapolated, and marked.
    """
    from laconic.planner.runs import FOLDER
    from laconic.report.frontier import run

    run(task, network, workers, size, out, as_json, FOLDER if runs is None else runs)

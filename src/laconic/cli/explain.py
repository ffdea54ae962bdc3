"""`laconic explain`: the plan that a schedule makes for a model on a network, and its predicted times."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("explain")(explain)


def explain(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="The strategy, as `bsp / allreduce / auto`.")],
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="The model's profile, as `laconic profile --out FILE` writes it.")
    ],
    workers: Annotated[int | None, typer.Option(help="Number of workers; default: as many as were profiled.")] = None,
    network: Annotated[
        str | None, typer.Option(help="A rate such as 1Gbit, in place of the links that were profiled.")
    ] = None,
    latency: Annotated[str, typer.Option(help="With --network: its one-way latency, as 50us.")] = "50us",
    messages: Annotated[int, typer.Option(help="The largest number of messages to list; 0: only the summary.")] = 40,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show which tensors a schedule merges or splits, when each message starts and ends, and how much of it
    is hidden behind computation."""
    from laconic.report.explanation import as_json, explained, show

    found = explained(sentence, profile, workers, network, latency)
    if json_:
        typer.echo(as_json(found))
    else:
        show(found, messages)

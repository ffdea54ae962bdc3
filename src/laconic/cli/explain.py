"""`laconic explain`: what a schedule does with a model on a network, and why."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("explain")(explain)


def explain(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="The strategy, as `bsp / allreduce / auto`.")],
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="Of the model (and its network): `laconic profile --out FILE`.")
    ],
    workers: Annotated[int | None, typer.Option(help="How many; default: as many as were profiled.")] = None,
    network: Annotated[
        str | None, typer.Option(help="A rate such as 1Gbit, in place of the links that were profiled.")
    ] = None,
    latency: Annotated[str, typer.Option(help="With --network: one way, as 50us.")] = "50us",
    messages: Annotated[int, typer.Option(help="List so many messages at most; 0: only the summary.")] = 40,
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a schedule merges and cuts, when each message leaves and arrives, what is hidden and what is exposed."""
    from laconic.report.explanation import as_json, explained, show

    found = explained(sentence, profile, workers, network, latency)
    if json_:
        typer.echo(as_json(found))
    else:
        show(found, messages)

"""`laconic explain`: the plan that a schedule makes for a model on a network, its predicted times, and its buckets."""

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
    messages: Annotated[
        int, typer.Option(help="The largest number of messages and buckets to list; 0: only the summary.")
    ] = 40,
    device: Annotated[
        str | None,
        typer.Option(help="Where buckets are tried: cpu, cuda or none; default: the GPU where there is one."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show which tensors a schedule merges or splits, when each message starts and ends, and how much of it
    is hidden behind computation.

    Then exchange each bucket with random values on this machine's device, and show how: as a whole or tensor by tensor
    and why, as CUDA graphs or why not, and how many calls of hot loops plain torch computed, by name.
    """
    from laconic.report.explanation import run

    run(sentence, profile, workers, network, latency, device, messages, json_)

"""`laconic iteration`: what one iteration takes under each published schedule or transport."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("iteration")(iteration)


def iteration(
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="A model (resnet50, gpt2 …), a profile or a PyTorch trace.")
    ],
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="For a model by name: v100, a100, h100 …")] = None,
    workers: Annotated[int, typer.Option(help="How many train.")] = 8,
    servers: Annotated[int | None, typer.Option(help="Hosts that sum gradients; default: one for each worker.")] = None,
    network: Annotated[str, typer.Option(metavar="RATE", help="The rate of every host's link, as 10gbit.")] = "1gbit",
    latency: Annotated[str, typer.Option(help="One way, as 50us.")] = "50us",
    json_: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what one iteration takes under each published schedule or transport that is registered as a model.

    They are simulated: priorities that switches serve, say, need hardware that does so. What a strategy takes that can
    be run, `laconic plan` and `laconic explain` say.
    """
    from laconic.report.iteration import run

    run(subject, gpu, workers, servers, network, latency, json_)

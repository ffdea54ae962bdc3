"""`laconic plan`: what to do about a training script and a network, before anything is paid."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("plan", context_settings={"allow_interspersed_args": True})(plan)


def plan(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT", help="A training script, a model (resnet50, gpt2 …), a profile or a PyTorch trace."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="The script's own; after -- if they begin with -.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "--gpus", help="How many will train.")] = 8,
    network: Annotated[
        str,
        typer.Option(help="A rate as 1gbit, a .toml file, output of nccl-tests, or probe: the machines at hand."),
    ] = "1gbit",
    latency: Annotated[str | None, typer.Option(help="With a rate: one way, as 50us.")] = None,
    gpu: Annotated[str | None, typer.Option(help="For a model by name: v100, a100, h100 …")] = None,
    batch: Annotated[int | None, typer.Option(help="For a model by name: samples a GPU; default: what fits.")] = None,
    objective: Annotated[str, typer.Option(help="What is to be small: time, bytes, cost or energy.")] = "time",
    loss_budget: Annotated[
        str, typer.Option(help="How much more loss is accepted, as 0.5%; default: the same mathematics.")
    ] = "0",
    price: Annotated[float | None, typer.Option(help="Dollars an hour of a worker, for --objective cost.")] = None,
    price_per_gigabyte: Annotated[float, typer.Option(help="Dollars for a gigabyte that a worker sends.")] = 0.0,
    watts: Annotated[float | None, typer.Option(help="Of a busy worker, for --objective energy.")] = None,
    servers: Annotated[int, typer.Option(help="Machines that may serve, beside the workers.")] = 0,
    slowness: Annotated[
        str | None, typer.Option(metavar="FACTORS", help="By worker, cycled: with 1,1,1,5 every fourth is slow.")
    ] = None,
    net: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --network probe: one made by `laconic net up`.")
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Price this one in place of all candidates; repeatable.")
    ] = None,
    top: Annotated[int, typer.Option(help="Rows to show.")] = 12,
    verify: Annotated[
        str | None, typer.Option(metavar="BUDGET", help="Then train the best with the script for so long, as 5min.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="For programs, and for `laconic report`.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever the cache holds.")] = False,
) -> None:
    """Say what would help, by how much and at what risk; or that nothing would.

    A script is rehearsed for a few steps (and kept in a cache), compression is timed, every sensible strategy is priced
    and held against tuned DDP with 16-bit gradients.
    """
    from laconic.report.advice import run

    run(
        subject,
        tuple(arguments or ()),
        verify,
        json_,
        workers=workers,
        network=network,
        latency=latency,
        gpu=gpu,
        batch=batch,
        objective=objective,
        loss_budget=loss_budget,
        price=price,
        price_per_gigabyte=price_per_gigabyte,
        watts=watts,
        servers=servers,
        slowness=slowness,
        net=net,
        consider=strategy,
        top=top,
        fresh=fresh,
    )

"""`laconic plan`: advice for a training script and a network, before the run."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    # options that are not the command's own are the script's, wherever they stand
    settings = {"allow_interspersed_args": True, "ignore_unknown_options": True}
    app.command("plan", context_settings=settings)(plan)


def plan(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT", help="A training script, a model (resnet50, gpt2 …), a profile or a PyTorch trace."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENTS", help="The script's own arguments; after -- also those that plan has itself."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "--gpus", help="Number of workers that will train.")] = 8,
    network: Annotated[
        str | None,
        typer.Option(
            help="A rate as 1gbit (the default), a .toml file, output of nccl-tests, or probe: measure this machine's."
        ),
    ] = None,
    gpus_per_host: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --gpu and a rate: GPUs in each machine; default: as usually sold, but one each where --network "
            "names a rate and all would fit into one.",
        ),
    ] = None,
    latency: Annotated[str | None, typer.Option(help="With a rate: the one-way latency, as 50us.")] = None,
    gpu: Annotated[str | None, typer.Option(help="For a model by name: its GPU, as v100, a100, h100 …")] = None,
    batch: Annotated[int | None, typer.Option(help="For a model by name: samples a GPU; default: what fits.")] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(help="Memory of each GPU, as 80GB, to tell what fits; default: that of --gpu.")
    ] = None,
    objective: Annotated[str, typer.Option(help="The quantity to minimise: time, bytes, cost or energy.")] = "time",
    loss_budget: Annotated[
        str,
        typer.Option(
            help="Accepted increase of the loss, as 0.5%; default 0: the same mathematics as synchronous SGD."
        ),
    ] = "0",
    price: Annotated[float | None, typer.Option(help="Dollars an hour of a worker, for --objective cost.")] = None,
    price_per_gigabyte: Annotated[float, typer.Option(help="Dollars for a gigabyte that a worker sends.")] = 0.0,
    watts: Annotated[
        float | None, typer.Option(help="Power of a busy worker in watts, for --objective energy.")
    ] = None,
    servers: Annotated[int, typer.Option(help="Machines that may be parameter servers, beside the workers.")] = 0,
    slowness: Annotated[
        str | None,
        typer.Option(metavar="FACTORS", help="Compute times by worker, cycled: with 1,1,1,5 every fourth is slow."),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --network probe: measure a network made by `laconic net up`."),
    ] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Price this strategy in place of all candidates; repeatable.")
    ] = None,
    top: Annotated[int, typer.Option(help="Rows to show, beside techniques whose loss is unknown.")] = 12,
    run_steps: Annotated[
        int | None,
        typer.Option(help="Steps of the whole run, by which phases (`bsp until step 500, then …`) are weighed."),
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(
            metavar="BUDGET", help="Then train the script with the best strategies for this time in all, as 5min."
        ),
    ] = None,
    parallel: Annotated[
        bool,
        typer.Option(
            "--parallel",
            help="Search layouts of a transformer by name (gpt3-175b …): pipeline, tensor and data parallelism. "
            "--network is then each host's, --batch that of all GPUs, --strategy one across data-parallel ranks.",
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, which `laconic report` reads too.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever the cache holds.")] = False,
) -> None:
    """Recommend a strategy, with its predicted gain and its risk, or report that none would help.

    A script is profiled for a few steps (the profile is kept in a cache), compression is timed, every sensible strategy
    is priced and compared with tuned DDP with 16-bit gradients.
    """
    if parallel:
        from laconic.report.layouts import run as run_layouts

        run_layouts(
            subject,
            json_,
            gpus=workers,
            network=network,
            gpus_per_host=gpus_per_host,
            gpu=gpu,
            latency=latency,
            batch=batch,
            gpu_memory=gpu_memory,
            strategies=strategy or (),
            top=top,
        )
        return

    from laconic.report.advice import run

    run(
        subject,
        tuple(arguments or ()),
        verify,
        json_,
        workers=workers,
        network=network,
        gpus_per_host=gpus_per_host,
        latency=latency,
        gpu=gpu,
        batch=batch,
        gpu_memory=gpu_memory,
        objective=objective,
        loss_budget=loss_budget,
        price=price,
        price_per_gigabyte=price_per_gigabyte,
        watts=watts,
        run_steps=run_steps,
        servers=servers,
        slowness=slowness,
        net=net,
        consider=strategy,
        top=top,
        fresh=fresh,
    )

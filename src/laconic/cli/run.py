"""`laconic run`: start a training script on several workers."""

from __future__ import annotations

from typing import Annotated

import typer

from laconic.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


def run(
    script: options.Script,
    arguments: options.Arguments = None,
    workers: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    strategy: Annotated[
        str | None, typer.Option(help="The sentence to train with; the script's own when left out.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")] = False,
    nodes: Annotated[int, typer.Option(help="Machines; start the same command on each.")] = 1,
    rendezvous: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the machines meet; HOST is one of them.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the whole run after this time (exit code 124).")
    ] = None,
    restarts: Annotated[int, typer.Option(help="Start all workers again after a loss, at most so many times.")] = 0,
    heartbeat: Annotated[
        float, typer.Option(metavar="SECONDS", help="A rank that is silent for this long is lost.")
    ] = 20.0,
    threads: Annotated[
        int, typer.Option(help="Intra-op threads per worker (sets OMP_NUM_THREADS); one keeps sums in one order.")
    ] = 1,
    folder: Annotated[
        str | None, typer.Option(help="The run folder: run.json and logs/. Default: runs/TIME-SCRIPT.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A metric to reach, as `loss=1.6`; repeatable.")
    ] = None,
    engine: options.Engine = "real",
    network: options.Network = None,
    profile: Annotated[
        str | None, typer.Option(metavar="FILE", help="For virtual workers: how fast they compute (laconic profile).")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write trace.json, a timeline for ui.perfetto.dev, to the run folder.")
    ] = False,
    net: options.Net = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report the sentence, its bytes and memory; train nothing.")
    ] = False,
) -> None:
    """Start a training script on several workers, here or on several machines.

    Rank 0 speaks on the console; every rank has a log in the run folder. If a rank is lost, all others end within
    seconds and say which.
    """
    from laconic.engine.launcher.launch import launch, leave
    from laconic.engine.launcher.request import Request, read_target

    request = Request(
        command=(script, *(arguments or ())),
        module=module,
        workers=workers,
        strategy=strategy,
        nodes=nodes,
        rendezvous=rendezvous,
        timeout_seconds=timeout,
        restarts=restarts,
        heartbeat_seconds=heartbeat,
        threads=threads,
        folder=folder,
        targets=dict(map(read_target, target or ())),
        dry_run=dry_run,
        engine=engine,
        network=network,
        profile=profile,
        net=net,
        trace=trace,
    )
    code = launch(request)
    if request.engine == "real":
        leave(code)
    raise typer.Exit(code)

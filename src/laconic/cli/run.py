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
    workers: Annotated[int, typer.Option(help="Number of worker processes on this machine.")] = 1,
    strategy: Annotated[str | None, typer.Option(help="The strategy to train with; default: the script's own.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as in `python -m`.")] = False,
    nodes: Annotated[int, typer.Option(help="Number of machines; start the same command on each.")] = 1,
    rendezvous: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address at which the machines find each other; HOST is one of them."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End the whole run after this time (exit code 124).")
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            help="How often all workers may be restarted after a loss; with --servers, how often each one by itself."
        ),
    ] = 0,
    servers: Annotated[
        int,
        typer.Option(
            help="Number of parameter-server processes, for strategies with a server; then any worker may be lost."
        ),
    ] = 0,
    server_restarts: Annotated[
        int, typer.Option(help="How often a lost server may be restarted from its snapshot.")
    ] = 10,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="With --servers and --folder: continue from the snapshots of an earlier run."),
    ] = False,
    colocate: Annotated[
        bool,
        typer.Option("--colocate", help="With --net: put server K into worker K's place; otherwise each has its own."),
    ] = False,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Keys for servers and several machines: made on the first machine; copy the file to the others.",
        ),
    ] = None,
    heartbeat: Annotated[
        float, typer.Option(metavar="SECONDS", help="A rank whose heartbeats stop for this long is lost.")
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
        str | None,
        typer.Option(
            metavar="FILE", help="For virtual workers: their compute times, as `laconic profile` writes them."
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write trace.json, a timeline for ui.perfetto.dev, to the run folder.")
    ] = False,
    net: options.Net = None,
    slowness: Annotated[
        str | None,
        typer.Option(
            metavar="FACTORS", help="Compute times by worker, cycled: with 1,1,1,5 every fourth is 5 times as slow."
        ),
    ] = None,
    stragglers: Annotated[
        str | None, typer.Option(metavar="PxF", help="0.2x3: in 20 % of its steps, a worker takes 3 times as long.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report the strategy, its bytes and its memory; train nothing.")
    ] = False,
) -> None:
    """Start a training script on several workers, here or on several machines.

    The console shows the output of rank 0; every rank has a log in the run folder. If a rank is lost, all others end
    within seconds and name it; with --servers, the run continues without it.
    """
    from laconic.experiments.rivals.text import check
    from laconic.launch.launch import exit_process, launch
    from laconic.launch.request import Request, read_slowness, read_stragglers, read_target

    if strategy is not None:
        check(strategy, virtual=engine == "virtual", dry_run=dry_run, servers=servers)
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
        servers=servers,
        server_restarts=server_restarts,
        resume=resume,
        colocate=colocate,
        keys=keys,
        slowness=read_slowness(slowness) if slowness else (),
        stragglers=read_stragglers(stragglers) if stragglers else (),
    )
    code = launch(request)
    if request.engine == "real":
        exit_process(code)
    raise typer.Exit(code)

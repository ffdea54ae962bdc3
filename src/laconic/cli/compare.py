"""`laconic compare`: several strategies of one script, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from laconic.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("compare", context_settings={"allow_interspersed_args": False})(compare)


def compare(
    script: Annotated[str | None, options.SCRIPT] = None,
    arguments: options.Arguments = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="A row: a strategy or another library's method (`torch:ddp`); repeat it. The first is the baseline. "
            "Alternatives of a knob in braces, `local(period={4|8|16})`: a row each; --protocol chooses one of them."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Workers of each row.")] = 4,
    rate: Annotated[
        str | None, typer.Option(help="Make a network with links of this rate, as 100Mbit, for the rows (needs root).")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="One-way delay of that network, as 25ms.")] = None,
    net: Annotated[str | None, typer.Option(metavar="NAME", help="A network that `laconic net up` made.")] = None,
    engine: options.Engine = "real",
    network: options.Network = None,
    target: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="Table the time and bytes until this metric is reached.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="End each row after this many steps; default: where the script ends.")
    ] = None,
    blocks: Annotated[int | None, typer.Option(help="Timed blocks to divide --steps into (default 10).")] = None,
    block_steps: Annotated[
        int | None, typer.Option(help="Steps of a block, rounded up to whole periods (default 10).")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Run all rows with each seed, as 0,1,2; with --protocol: seeds to report."),
    ] = None,
    seed_argument: Annotated[str, typer.Option(help="The script's option for its seed.")] = "--seed",
    quick: Annotated[bool, typer.Option("--quick", help="Few blocks, one seed, no tuning; the table says so.")] = False,
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Tune every row alike, add rivals, report other seeds with intervals.")
    ] = False,
    lr: Annotated[float | None, typer.Option(help="With --protocol: the script's own learning rate.")] = None,
    lr_argument: Annotated[str, typer.Option(help="With --protocol: the script's option for it.")] = "--lr",
    metric: Annotated[str, typer.Option(help="With --protocol: the metric to tune by.")] = "loss",
    choosing_seeds: Annotated[str, typer.Option(metavar="LIST", help="With --protocol: seeds to tune with.")] = "0,1",
    no_rivals: Annotated[
        bool, typer.Option("--no-rivals", help="With --protocol: do not add the rivals' rows.")
    ] = False,
    rows_at_once: Annotated[
        int | None, typer.Option(help="Rows in memory at a time; each group repeats the baseline.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Intra-op threads per worker.")] = 1,
    folder: Annotated[
        str | None, typer.Option(help="Folder of the results; an interrupted --protocol continues there.")
    ] = None,
    again: Annotated[str | None, typer.Option(metavar="FOLDER", help="Repeat the comparison kept there.")] = None,
) -> None:
    """Compare strategies on one script: time per step, communication, bytes, and time to a target.

    The workers of all real rows are alive at once and train in turn, a block of steps each, so that noise of the
    machine affects all rows alike. The exit code is 1 when a row failed.
    """
    from laconic.experiments.compare import compare as carry_out
    from laconic.experiments.folder import read_settings
    from laconic.experiments.request import settings_of
    from laconic.report.progress import progress
    from laconic.report.table import write

    if again is not None:
        from pathlib import Path

        settings = read_settings(Path(again))
    else:
        settings = settings_of(
            script, arguments or (), strategy or (), workers=workers, rate=rate, delay=delay, net=net, engine=engine,
            network=network, target=target, steps=steps, blocks=blocks, block_steps=block_steps, seeds=seeds,
            seed_argument=seed_argument, quick=quick, protocol=protocol, lr=lr, lr_argument=lr_argument, metric=metric,
            choosing_seeds=choosing_seeds, rivals=not no_rivals, rows_at_once=rows_at_once, threads=threads,
        )  # fmt: skip
    with progress() as watch:
        comparison = carry_out(settings, folder, watch)
    typer.echo(write(comparison), nl=False)
    raise typer.Exit(1 if comparison.failed else 0)

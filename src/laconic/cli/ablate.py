"""`laconic ablate`: what each part of a strategy contributes."""

from __future__ import annotations

from typing import Annotated

import typer

from laconic.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("ablate", context_settings={"allow_interspersed_args": False})(ablate)


def ablate(
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="The strategy to take apart.")],
    script: options.Script,
    arguments: options.Arguments = None,
    workers: Annotated[int, typer.Option(help="Workers of each row.")] = 4,
    engine: options.Engine = "virtual",
    network: options.Network = None,
    rate: Annotated[
        str | None,
        typer.Option(help="For real workers: make a network with links of this rate, as 100Mbit (needs root)."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="End each row after this many steps; default: where the script ends.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="LIST", help="Run all rows with each seed, as 0,1,2; this gives intervals.")
    ] = None,
    seed_argument: Annotated[str, typer.Option(help="The script's option for its seed.")] = "--seed",
    metric: Annotated[str, typer.Option(help="The metric to show in the table.")] = "loss",
    protocol: Annotated[
        bool, typer.Option("--protocol", help="Tune every row alike, report other seeds with intervals.")
    ] = False,
    lr: Annotated[float | None, typer.Option(help="With --protocol: the script's own learning rate.")] = None,
    lr_argument: Annotated[str, typer.Option(help="With --protocol: the script's option for it.")] = "--lr",
    choosing_seeds: Annotated[str, typer.Option(metavar="LIST", help="With --protocol: seeds to tune with.")] = "0,1",
    only_list: Annotated[
        bool, typer.Option("--list", help="List the rows that there would be, and run nothing.")
    ] = False,
    folder: Annotated[
        str | None, typer.Option(help="Folder of the results; an interrupted --protocol continues there.")
    ] = None,
) -> None:
    """Take a strategy apart: remove or replace one part at a time, and table what each does to loss, bytes and time.

    Compressors of a chain are removed, other words are replaced by their plain form, switches are switched off and
    knobs are set back to their defaults. Everything else stays, the learning rate included (--protocol tunes it for
    every row).
    """
    from laconic.experiments.ablation import variants
    from laconic.report.ablation import listed, write
    from laconic.strategy import Strategy

    whole = Strategy.parse(sentence)
    found = variants(whole)
    if only_list:
        typer.echo(listed(whole, found), nl=False)
        return
    from laconic.experiments.compare import compare
    from laconic.experiments.request import settings_of
    from laconic.report.progress import progress

    rows = [str(whole), *(str(v.strategy) for v in found if v.strategy is not None)]
    settings = settings_of(
        script, arguments or (), rows, workers=workers, rate=rate, engine=engine, network=network, target=None,
        steps=steps, blocks=None, seeds=seeds, seed_argument=seed_argument, quick=False, protocol=protocol, lr=lr,
        lr_argument=lr_argument, metric=metric, choosing_seeds=choosing_seeds, rivals=False,
    )  # fmt: skip
    with progress() as watch:
        comparison = compare(settings, folder, watch)
    typer.echo(write(comparison, found, metric), nl=False)
    raise typer.Exit(1 if comparison.failed else 0)

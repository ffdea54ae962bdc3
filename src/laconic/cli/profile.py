"""`laconic profile`: measure a script's layer times, its links, and the time that compressors take."""

from __future__ import annotations

from typing import Annotated

import typer

from laconic.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the tool."""
    app.command("profile", context_settings={"allow_interspersed_args": False})(profile)


def profile(
    script: options.Script,
    arguments: options.Arguments = None,
    workers: Annotated[int, typer.Option(help="Number of worker processes on this machine; all run at once.")] = 4,
    net: options.Net = None,
    steps: Annotated[int, typer.Option(help="Steps to time, after a few to warm up.")] = 48,
    threads: Annotated[int, typer.Option(help="Intra-op threads per worker.")] = 1,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the profile to this file as well as to the cache.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever the cache holds.")] = False,
) -> None:
    """Measure the profile from which `laconic run --engine virtual --profile FILE` and `laconic plan` predict.

    The script runs on all workers at once without exchanging gradients; collectives and encoders are timed separately.
    So no step of the training that is predicted later is used to predict it.
    """
    from laconic.launch.launch import exit_process
    from laconic.launch.profiling import measure
    from laconic.report.profile import show

    show(measure((script, *(arguments or ())), workers, net, steps, threads, out, fresh))
    exit_process(0)

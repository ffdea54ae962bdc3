"""The command line: one file per command, none of which imports torch before it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from laconic._version import __version__
from laconic.cli import (
    ablate,
    bounds,
    catalogue,
    check,
    compare,
    doctor,
    explain,
    iteration,
    mixing,
    net,
    options,
    plan,
    profile,
    report,
    run,
    validate,
)
from laconic.errors import LaconicError

app = typer.Typer(
    help="Train PyTorch models across machines while sending as little as possible over the network.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"laconic {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


run.register(app)
compare.register(app)
ablate.register(app)
net.register(app)
profile.register(app)
doctor.register(app)
explain.register(app)
iteration.register(app)
bounds.register(app)
mixing.register(app)
validate.register(app)
report.register(app)
plan.register(app)
catalogue.register(app)
check.register(app)

for command in app.registered_commands:
    assert command.callback is not None
    command.callback = options.extendable(command.callback)


def main() -> None:
    """Run the command line; an error of the library is printed as one line on stderr, not as a traceback."""
    try:
        app(prog_name="laconic")
    except LaconicError as error:
        print(f"laconic: {' '.join(str(error).splitlines())}", file=sys.stderr)
        raise SystemExit(2) from None

"""The command line: one file per command, none of which imports torch before it is called."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from laconic._version import __version__
from laconic.cli import (
    ablate,
    bounds,
    catalogue,
    check,
    cluster,
    collective,
    compare,
    data,
    doctor,
    explain,
    federated,
    frontier,
    iteration,
    mixing,
    net,
    options,
    pipeline,
    plan,
    profile,
    report,
    run,
    validate,
)
from laconic.errors import LaconicError

DEFECT = 70  # the exit code of an error that nobody foresaw (EX_SOFTWARE)

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
collective.register(app)
pipeline.register(app)
cluster.register(app)
federated.register(app)
validate.register(app)
data.register(app)
report.register(app)
plan.register(app)
frontier.register(app)
catalogue.register(app)
check.register(app)

for registered in app.registered_commands:
    assert registered.callback is not None
    registered.callback = options.extendable(registered.callback)


def command() -> None:
    """Run the command line as a process of its own, which is what the installed command and `python -m laconic` do."""
    try:
        main()
    except SystemExit as end:
        if launched := sys.modules.get("laconic.launch.launch"):  # threads of torch's stores may be left
            launched.exit_process(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def main() -> None:
    """Run the command line; an error is printed as one line on stderr, the traceback of a defect goes to a file."""
    try:
        try:
            app(prog_name="laconic")
        finally:
            sys.stdout.flush()
    except LaconicError as error:
        _end(" ".join(str(error).splitlines()), 2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _end(_defect(error), DEFECT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries to write the rest, and complains
        _end(f"{error.filename or 'the output'} cannot be written ({error.strerror}): make room, or write elsewhere", 2)
    except Exception as error:
        _end(_defect(error), DEFECT)


def _end(sentence: str, code: int) -> NoReturn:
    print(f"laconic: {sentence}", file=sys.stderr)
    raise SystemExit(code) from None


def _defect(error: Exception) -> str:
    """Return the sentence about an error that nobody foresaw, whose traceback is kept for a report."""
    import tempfile
    import traceback

    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    try:
        with tempfile.NamedTemporaryFile("w", prefix="laconic-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"{what}. This was not foreseen, and there is no room in {tempfile.gettempdir()} for its details"
    return f"{what}. This was not foreseen: please report it, with the details in {file.name}"

"""The report of a failed run on the console: which worker was lost first, how its log ends, and what to do."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from laconic.errors import LaconicError
from laconic.launch.launch_context import LaunchContext
from laconic.launch.request import Request
from laconic.liveness.detection import EXIT_LOST, Lost, describe_exit

_TAIL_LINES = 15


class FailedRun(Protocol):
    """What one host knows of a run that failed: who was lost, and the exit code of each of its ranks."""

    context: LaunchContext
    lost: Lost | None
    codes: dict[int, int]

    @property
    def ranks(self) -> tuple[int, ...]: ...


def print_line(text: str) -> None:
    """Print a line of the launcher itself, marked so that it differs from what the script prints."""
    print(f"laconic: {text}", file=sys.stderr, flush=True)


def report_failure(run: FailedRun) -> int:
    """Print one block about the first cause, and return the exit code for the shell."""
    lost, codes = run.lost, run.codes
    ranks = lost.ranks if lost is not None else tuple(rank for rank, code in codes.items() if code)
    print_line("the run failed" + (f": {lost.headline()}" if lost is not None else "."))
    for rank in (r for r in ranks if r in run.ranks):
        ended = f" ({describe_exit(codes[rank])[0]})" if rank in codes else ""
        show_log(f"rank {rank}{ended}", run.context.log(rank), tail=rank != 0)
    code = next((codes[rank] for rank in ranks if codes.get(rank)), EXIT_LOST)
    return 128 - code if code < 0 else code


def show_log(name: str, log: Path, tail: bool) -> None:
    """Print where a process's log is, and how it ends; the end of rank 0's is on the console already."""
    print(f"  log of {name}: {shown(log)}", file=sys.stderr)
    for line in _tail(log) if tail else ():
        print(f"  | {line}", file=sys.stderr)


def explain(error: BaseException, request: Request) -> str:
    """Return a sentence about an error of the launcher itself, rather than of a worker."""
    from torch.distributed.elastic.rendezvous import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )

    if isinstance(error, RendezvousTimeoutError):
        return (
            f"not all {request.nodes} machines joined at {request.rendezvous} in time. Start the same command on each, "
            f"and check that they reach that address."
        )
    if isinstance(error, RendezvousClosedError | RendezvousConnectionError):
        return f"the run at {request.rendezvous} has been ended by another machine: look at its console."
    if isinstance(error, LaconicError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be written or read: {error.strerror}."
    return f"{type(error).__name__}: {error}"


def shown(path: Path) -> str:
    """Return a path to copy into a shell, relative to the current folder where it is below that."""
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return shlex.quote(str(path))


def _tail(log: Path) -> list[str]:
    try:
        return log.read_bytes()[-64_000:].decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []

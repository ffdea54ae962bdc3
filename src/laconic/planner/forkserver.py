"""A fork server for short trainings: processes forked from one that has imported everything start in a second.

The process that forks is Python's own fork server, not the caller, whose threads and devices would not survive a fork.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from laconic import registry
from laconic.experiments import child
from laconic.experiments.row import Row, RowProcess
from laconic.launch.request import Request
from laconic.values.process_place import PLACE_VARIABLES
from laconic.values.run_config import VARIABLE

registry.load()  # in the fork server, for all processes forked from it

_context = get_context("forkserver")
# torch imports its compiler with the first optimizer that is created
_context.set_forkserver_preload([__name__, "torch._dynamo", "laconic.launch.virtual", "laconic.api.distribute"])


class ForkedRow(RowProcess):
    """The run of a row as `RowProcess`, but in a process of the fork server."""

    def __init__(self, row: Row, request: Request, folder: Path) -> None:
        self.row, self.folder = row, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.process = _Forked(json.dumps(asdict(request)), folder / "console.log")  # type: ignore[assignment]


class _Forked:
    """A forked process with the methods of `subprocess.Popen` that a comparison uses."""

    def __init__(self, request: str, console: Path) -> None:
        self._process = _context.Process(target=_run_in_child, args=(request, str(console)), daemon=True)
        with _without_main():
            self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's main module, which a child would import again: slow, and endless where it is not guarded."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _run_in_child(request: str, console: str) -> None:
    """Run the request in the child, with its own session and console; exit handlers report its last records."""
    os.setsid()
    for name in (VARIABLE, *PLACE_VARIABLES):
        os.environ.pop(name, None)
    file = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        code = child.main(request)
    finally:
        atexit._run_exitfuncs()  # a forked process would skip the exit handlers
    sys.exit(code)

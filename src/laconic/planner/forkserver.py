"""Processes for short trainings, forked from one that has imported everything: a second each instead of several.

The process that forks is Python's own fork server, not the caller, whose threads and devices a fork would not survive.
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
from laconic.values.run_config import VARIABLE

registry.load()  # for whoever forks from the server

_ours = get_context("forkserver")
# torch imports its compiler with the first optimizer that is made
_ours.set_forkserver_preload([__name__, "torch._dynamo", "laconic.launch.virtual", "laconic.api.distribute"])


class ForkedRow(RowProcess):
    """A run of its own, as a comparison has them."""

    def __init__(self, row: Row, request: Request, folder: Path) -> None:
        self.row, self.folder = row, folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.process = _Forked(json.dumps(asdict(request)), folder / "console.log")  # type: ignore[assignment]


class _Forked:
    """What a comparison asks of a process."""

    def __init__(self, request: str, console: Path) -> None:
        self._process = _ours.Process(target=_live, args=(request, str(console)), daemon=True)
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
    """A child would run the caller's main module again, which takes long, and for ever where it is not guarded."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _live(request: str, console: str) -> None:
    """In the child: a session and a console of its own, then the run; its probes report when it ends."""
    os.setsid()
    for name in (VARIABLE, "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    file = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    try:
        code = child.main(request)
    finally:
        atexit._run_exitfuncs()  # which a forked process would leave out
    sys.exit(code)

"""Progress of a long command on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_LINE_SECONDS = 10.0


class Lines:
    """Progress for files and pipes: every message, and the current position every ten seconds at most."""

    def __init__(self) -> None:
        self._stage, self._total, self._count, self._last = "", None, 0, 0.0  # type: tuple[str, int | None, int, float]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, what: str, total: int | None) -> None:
        self._stage, self._total, self._count = what, total, 0

    def at(self, what: str) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            of = "" if self._total is None else f"/{self._total}"
            self.say(f"{self._stage} {self._count + 1}{of}: {what}")

    def done(self) -> None:
        self._count += 1

    def say(self, text: str) -> None:
        print(f"laconic: {text}", file=sys.stderr, flush=True)


class Bar:
    """Progress for terminals: one moving line with the elapsed and the remaining time."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._progress = Progress(
            TextColumn("{task.fields[stage]}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            Remaining(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def begin(self, what: str, total: int | None) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task("", total=total, stage=what)

    def at(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def done(self) -> None:
        self._progress.advance(self._task)

    def say(self, text: str) -> None:
        self._progress.console.print(f"laconic: {text}", markup=False, highlight=False)


def progress() -> Lines | Bar:
    """Return a bar if standard error is a terminal, and plain lines otherwise."""
    return Bar() if sys.stderr.isatty() else Lines()

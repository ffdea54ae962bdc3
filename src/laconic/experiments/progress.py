"""The interface through which a comparison reports its progress, independent of how it is shown."""

from __future__ import annotations

from typing import Protocol


class ProgressReport(Protocol):
    """A receiver of progress: a bar on a terminal, lines in a file, or nothing in a test."""

    def begin(self, what: str, total: int | None) -> None:
        """Begin a stage; `total` is the number of its parts, if known."""
        ...

    def at(self, what: str) -> None:
        """Report which part is running."""
        ...

    def done(self) -> None:
        """Report that one part is done."""
        ...

    def say(self, text: str) -> None:
        """Print a line that stays visible."""
        ...


class NoProgress:
    """A progress report that shows nothing."""

    def begin(self, what: str, total: int | None) -> None:
        pass

    def at(self, what: str) -> None:
        pass

    def done(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

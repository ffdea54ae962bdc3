"""How a comparison tells a person where it is, without knowing how it is shown."""

from __future__ import annotations

from typing import Protocol


class ProgressReport(Protocol):
    """Whoever shows progress: a bar on a terminal, lines in a file, nothing in a test."""

    def begin(self, what: str, total: int | None) -> None:
        """A stage begins; it has so many parts, if that is known."""
        ...

    def at(self, what: str) -> None:
        """This part is under way."""
        ...

    def done(self) -> None:
        """One part is done."""
        ...

    def say(self, text: str) -> None:
        """A line to keep."""
        ...


class NoProgress:
    """Nobody looks."""

    def begin(self, what: str, total: int | None) -> None:
        pass

    def at(self, what: str) -> None:
        pass

    def done(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

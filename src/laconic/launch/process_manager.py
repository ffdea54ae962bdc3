"""What a launch needs of whoever starts this machine's processes: torch's agent (`agent.py`), for workers who stand and
fall together, or the supervisor (`supervise.py`), for processes that may die and come back one by one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from laconic.launch.site import Site

OnStart = Callable[[int, Sequence[int], int], None]
"""Told, before processes start, this machine's number, the ranks on it, and how many workers there are in all."""


class ProcessManager(Protocol):
    """One per machine. It lives in a thread of its own, and is stopped from another."""

    site: Site

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on this machine."""
        ...

    def see_through(self) -> None:
        """Start everybody, and return when the run is over."""
        ...

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        """End everybody: with this signal, and after so many seconds without appeal."""
        ...

    def account(self) -> int:
        """Say on the console how the run ended, where there is something to say; the exit code for the shell."""
        ...

    def facts(self) -> dict[str, Any]:
        """How it went, for the record."""
        ...

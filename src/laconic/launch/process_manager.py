"""`ProcessManager`: the interface of what starts and watches this host's processes.

torch's elastic agent (`elastic_agent.py`) manages workers that can only be restarted together; the supervisor
(`supervisor.py`) manages processes that may die and be restarted one by one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from laconic.launch.launch_context import LaunchContext

OnStart = Callable[[int, Sequence[int], int], None]
"""A callback before processes start, with this host's number, the ranks on it, and the number of all workers."""


class ProcessManager(Protocol):
    """Starts and watches the processes of one host. It runs in a thread of its own, and is stopped from another."""

    context: LaunchContext

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks on this host."""
        ...

    def run_to_end(self) -> None:
        """Start all processes, and return when the run is over."""
        ...

    def stop(self, number: signal.Signals, cause: str, seconds: float) -> None:
        """End all processes: with this signal, and after so many seconds with SIGKILL."""
        ...

    def report(self) -> int:
        """Report on the console how the run ended, unless it ended well, and return the exit code for the shell."""
        ...

    def result_fields(self) -> dict[str, Any]:
        """Return the fields of `run.json` about losses and restarts."""
        ...

"""Functions that end worker processes: each leads a process group, so that its children end with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired


def forward(processes: Collection[Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to the process groups of those processes that still run."""
    for process in processes:
        if process.poll() is None:
            _signal_group(process, number)


def await_exits(processes: Collection[Popen[bytes]], seconds: float) -> None:
    """Wait until all processes have ended, except those that a signal has stopped: they cannot react."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if all(process.poll() is not None or _is_stopped(process.pid) for process in processes):
            return
        time.sleep(0.02)


def kill(processes: Collection[Popen[bytes]]) -> None:
    """Kill whatever is left of all process groups with SIGKILL."""
    for process in processes:
        _signal_group(process, signal.SIGKILL)
    for process in processes:
        with suppress(TimeoutExpired):  # blocked in the kernel: it cannot be killed
            process.wait(timeout=5)


def _signal_group(process: Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group is gone already
        os.killpg(process.pid, number)


def _is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process; False where there is no /proc to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False

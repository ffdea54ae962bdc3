"""The machine on which a profile was measured, in enough detail to know whether the profile still holds."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(threads: int = 1) -> dict[str, Any]:
    """Return processor, cores, and the versions that determine how fast they compute."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads_per_worker": threads,
        "system": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())

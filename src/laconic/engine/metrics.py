"""Metrics the user reports: `laconic.log(loss=…, accuracy=…, batch=…)`.

They are what targets, phases that end at a loss, and adaptive rules look at. Each worker keeps its own latest values;
in a run with a folder every call is appended to `metrics/rank-N.jsonl`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import SupportsFloat, TextIO

from laconic.engine.config import RunConfig
from laconic.engine.connect import current, rank
from laconic.errors import ContractError

_latest: dict[int, dict[str, float]] = {}
_files: dict[int, TextIO] = {}


def log(**values: SupportsFloat) -> None:
    """Report metrics of this worker's current step by name; tensors of one element are fine."""
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ContractError(f"log({name}=…) takes a number, not {type(value).__name__}") from None
    _latest.setdefault(rank(), {}).update(numbers)
    file = _file()
    if file is not None:
        worker = current()
        file.write(json.dumps({"seconds": time.time(), "connected": worker is not None, **numbers}) + "\n")


def latest(name: str) -> float | None:
    """The last value this worker logged under a name."""
    return _latest.get(rank(), {}).get(name)


def _file() -> TextIO | None:
    folder = RunConfig.current().folder
    if folder is None:
        return None
    if rank() not in _files:
        path = Path(folder) / "metrics" / f"rank-{rank()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        _files[rank()] = path.open("a", buffering=1)
    return _files[rank()]

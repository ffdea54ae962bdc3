"""Rows of a measurement: appended as JSON, printed as a table, within a limit of time."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Rows:
    """Where results go.

    - `path`: a file of JSON lines that is appended to; None: nowhere.
    - `common`: what every row says, such as the device.
    - `minutes`: when nothing more is to be begun.
    """

    def __init__(self, path: Path | None, common: dict[str, Any], minutes: float) -> None:
        self._path, self._common = path, common
        self._end = time.monotonic() + 60 * minutes

    def add(self, section: str, **row: Any) -> None:
        """Append a row and print it."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({**self._common, "section": section, **row}) + "\n")
        print(f"{section:9} " + "  ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self._end - time.monotonic()

    def time_for(self, section: str, what: str, seconds: float) -> bool:
        """Tell whether something of so many seconds may begin; a row says where it may not."""
        if self.left() < seconds:
            self.add(section, case=what, left_out=f"{self.left():.0f} s are left, and it takes {seconds:.0f}")
            return False
        return True


def shown(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict) and value.keys() == {"median", "low", "high"}:
        return f"{value['median']:.4g} ({value['low']:.4g} to {value['high']:.4g})"
    if isinstance(value, list) and len(value) > 12:
        return f"[{len(value)} entries]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    if len(values) < 2:
        return dict.fromkeys(("median", "low", "high"), float(values[0]))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}

"""Slow-downs of spread jobs, as Chronus' authors measured them (Gao et al., SoCC 2021)."""

from __future__ import annotations

import json
from pathlib import Path


def read_slowdowns(path: Path) -> dict[str, dict[int, dict[int, float]]]:
    """Return the speed of every model by number of workers and by number of hosts, as a share of that on one host.

    - `path`: a JSON file of the same nesting.
    """
    found = json.loads(path.read_text())
    return {
        model: {int(workers): {int(h): float(speed) for h, speed in row.items()} for workers, row in table.items()}
        for model, table in found.items()
    }

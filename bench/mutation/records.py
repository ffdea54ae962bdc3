"""Files of records, a JSON object per line: several processes add to one, and an interrupted run goes on with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def append(path: Path, record: object) -> None:
    """Add one record in one write, so that those of other processes stay whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write((json.dumps(record) + "\n").encode())


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; a last line that was cut off by the end of its process is not one."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found

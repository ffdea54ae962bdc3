"""Measurements of others that some tests are held against: the folder LACONIC_DATA, never part of the project."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("LACONIC_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"))


def rows(name: str) -> list[dict[str, str]]:
    """A CSV file's rows, comments left out; the test is skipped where the file is absent."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER}: set LACONIC_DATA to the folder with the published measurements")
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))

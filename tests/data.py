"""Measurements of others that some tests are held against: the folder LACONIC_DATA, never part of the project."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OPENED: set[str] = set()
"""The recordings that the test which runs now has asked for."""
FOLDER = Path(os.environ.get("LACONIC_DATA", Path(__file__).resolve().parents[1] / ".." / "shared" / "data"))


def rows(name: str) -> list[dict[str, str]]:
    """A CSV file's rows, comments left out; the test is skipped where the file is absent."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER}: set LACONIC_DATA to the folder with the published measurements")
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def fixture(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs and outputs of an author's or another's program; the test is skipped where the file is absent."""
    with np.load(_fixture(name), allow_pickle=False) as kept:
        return dict(kept)


def cases(name: str) -> list[dict[str, Any]]:
    """The same where they are cases in JSON."""
    found: list[dict[str, Any]] = json.loads(_fixture(name).read_text())["cases"]
    return found


def _fixture(name: str) -> Path:
    OPENED.add(name)
    path = FOLDER / "fixtures" / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER}/fixtures: set LACONIC_DATA to the folder with the recordings")
    return path


def folder_of(name: str) -> Path:
    """Return a folder of recorded measurements; the test is skipped where it is absent."""
    path = FOLDER / name
    if not path.is_dir():
        pytest.skip(f"{name} is not in {FOLDER}: set LACONIC_DATA to the folder with the recorded measurements")
    OPENED.add(name)
    return path

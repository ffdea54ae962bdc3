"""Read files that may be missing, truncated or broken, with an error that says which."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from laconic.report.page.values import ReportError


def read_text(path: Path) -> str:
    """Return a file's text, or raise a ReportError where it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is broken: it is no UTF-8 text ({error.reason}).") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise a ReportError where there is none."""
    try:
        found = json.loads(read_text(path))
    except ReportError:
        raise
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} is broken: it is no JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ReportError(f"{path} is broken: it holds no table of names and values.")
    return found


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the JSON object of each line.

    A last line without its line end was written by a process that was killed meanwhile, and is left out.
    """
    content = read_text(path)
    lines = content.split("\n")[:-1]
    found: list[dict[str, Any]] = []
    for place, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ReportError(f"{path} is broken: line {place} is no JSON ({error}).") from error
        if not isinstance(record, dict):
            raise ReportError(f"{path} is broken: line {place} holds no table of names and values.")
        found.append(record)
    return found

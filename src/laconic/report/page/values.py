"""The inputs of a page as plain values: runs, comparisons and plans that were read from disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laconic.errors import LaconicError
from laconic.experiments.measure import Line
from laconic.experiments.outcome import Logged, RunOutcome
from laconic.planner.values import Advice
from laconic.runtime.timeline import Timeline


class ReportError(LaconicError, ValueError):
    """An input of which no page can be made; the message says what is wrong with it and what to give instead."""


@dataclass(frozen=True)
class Run:
    """A folder of `laconic run`; `logged` holds the entries of the first worker that logged anything."""

    folder: Path
    record: Mapping[str, Any]
    logged: tuple[Logged, ...] = ()
    timeline: Timeline | None = None
    logs: Mapping[str, str] = field(default_factory=dict)  # how each ends
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        strategy = self.record.get("strategy")
        return f"{strategy} ({self.folder.name})" if strategy else self.folder.name


@dataclass(frozen=True)
class Compared:
    """A folder of `laconic compare`; the first line is the baseline's, `runs` holds each line's outcomes by seed."""

    folder: Path
    record: Mapping[str, Any]
    lines: tuple[Line, ...]
    table_csv: str
    made: tuple[str, ...] = ()  # how, in sentences
    legend: tuple[str, ...] = ()  # how to read the table
    runs: tuple[tuple[RunOutcome, ...], ...] = ()  # of each line
    missing: int = 0  # sessions of which there are no curves, since a row failed

    @property
    def settings(self) -> Mapping[str, Any]:
        found = self.record["settings"]
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Planned:
    """A file of `laconic plan --json`."""

    path: Path
    advice: Advice


@dataclass(frozen=True)
class Inputs:
    """Everything one page shows."""

    plans: tuple[Planned, ...] = ()
    comparisons: tuple[Compared, ...] = ()
    runs: tuple[Run, ...] = ()

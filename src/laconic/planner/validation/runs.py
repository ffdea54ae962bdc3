"""Step times of real runs against the planner's predictions: the table that ships with the package."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from importlib import resources

from laconic.planner.validation.errors import Errors
from laconic.planner.values import PlanError

TABLE = "measured/steps.csv"
_NUMBERS = ("r", "predicted_seconds", "measured_seconds", "low_seconds", "high_seconds")


@dataclass(frozen=True)
class Run:
    """One real run; `r` is the communication time divided by the computation time of its baseline.

    The measured step is the median over blocks of steps; a tenth of the blocks lay below `low_seconds`, a tenth above
    `high_seconds`.
    """

    model: str
    network: str
    r: float
    workers: int
    strategy: str
    predicted_seconds: float
    measured_seconds: float
    low_seconds: float
    high_seconds: float

    @property
    def error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1

    @property
    def inside(self) -> bool:
        """Whether the prediction lies within the spread of the measured blocks."""
        return self.low_seconds <= self.predicted_seconds <= self.high_seconds


@dataclass(frozen=True)
class RunErrors:
    """The errors of the planner's predictions over all real runs."""

    runs: tuple[Run, ...]

    @property
    def errors(self) -> Errors:
        found = Errors.of((run.predicted_seconds, run.measured_seconds) for run in self.runs)
        assert found is not None  # there is a run
        return found

    @property
    def share_inside(self) -> float:
        return sum(run.inside for run in self.runs) / len(self.runs)


def validate() -> RunErrors:
    """Return the errors on the table that ships with the package."""
    table = resources.files("laconic.planner") / TABLE
    if not table.is_file():
        raise PlanError(f"no run has been measured yet: {TABLE} is not in this package")
    return read(table.read_text())


def read(text: str) -> RunErrors:
    """Return the errors on a table of runs given as CSV text."""
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    if not rows:
        raise PlanError(f"no run has been measured yet: {TABLE} is empty")
    return RunErrors(tuple(_run(row, number) for number, row in enumerate(rows, start=1)))


def _run(row: dict[str, str], number: int) -> Run:
    try:
        numbers = {name: float(row[name]) for name in _NUMBERS}
        run = Run(
            model=row["model"],
            network=row["network"],
            workers=int(row["workers"]),
            strategy=row["strategy"],
            **numbers,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"run {number} of {TABLE} cannot be read ({error!r})") from error
    if not all(0 < value < math.inf for value in (run.predicted_seconds, run.measured_seconds)):
        raise PlanError(f"run {number} of {TABLE} takes no positive time: {run}")
    return run

"""Step times of real runs against the planner's predictions: the table that ships with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from laconic.planner.validation.errors import Errors
from laconic.planner.values import PlanError
from laconic.reading import Natural, NotNegative, Positive, Source

TABLE = "measured/steps.csv"


@dataclass(frozen=True)
class Run:
    """One real run; `r` is the communication time divided by the computation time of its baseline.

    The measured step is the median over blocks of steps; a tenth of the blocks lay below `low_seconds`, a tenth above
    `high_seconds`.
    """

    model: str
    network: str
    r: NotNegative
    workers: Natural
    strategy: str
    predicted_seconds: Positive
    measured_seconds: Positive
    low_seconds: NotNegative
    high_seconds: NotNegative

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
    return read((resources.files("laconic.planner") / TABLE).read_text(encoding="utf-8"))


def read(text: str) -> RunErrors:
    """Return the errors on a table of runs given as CSV text."""
    source = Source(TABLE, "table of real runs", "make it with `python bench/plan.py --csv FILE`", PlanError)
    return RunErrors(tuple(source.rows(text, Run)))

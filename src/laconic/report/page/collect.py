"""Read the inputs of a page: folders of runs and comparisons and plans, recognised by what they contain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laconic.files import exists
from laconic.planner.values import Advice
from laconic.report.page.files import read_text
from laconic.report.page.read_comparison import is_comparison, read_comparison
from laconic.report.page.read_run import is_run, read_run
from laconic.report.page.values import Compared, Inputs, Planned, ReportError, Run


def collect(paths: Sequence[Path]) -> Inputs:
    """Read all inputs in the order given; a path that is given twice counts once."""
    if not paths:
        raise ReportError("nothing to report on: give folders of `laconic run` or `laconic compare`, or plans.")
    plans: list[Planned] = []
    comparisons: list[Compared] = []
    runs: list[Run] = []
    for path in dict.fromkeys(paths):
        found = read(path)
        if isinstance(found, Planned):
            plans.append(found)
        elif isinstance(found, Compared):
            comparisons.append(found)
        else:
            runs.append(found)
    return Inputs(tuple(plans), tuple(comparisons), tuple(runs))


def read(path: Path) -> Planned | Compared | Run:
    """Read one input: a plan from a file, a comparison or a run from a folder."""
    if not exists(path):
        raise ReportError(f"there is no {path}: give a folder of `laconic run` or `laconic compare`, or a plan.")
    if path.is_file():
        return Planned(path, Advice.from_json(read_text(path), str(path)))
    if is_comparison(path):
        return read_comparison(path)
    if is_run(path):
        return read_run(path)
    raise ReportError(
        f"{path} is no run: it holds neither run.json, as `laconic run` writes, nor compare.json, as `laconic compare` "
        "does."
    )

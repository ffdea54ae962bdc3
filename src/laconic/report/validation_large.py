"""The section of `laconic validate` on large models: tables, summary lines and plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group as Rendered

from laconic.parallel.hybrid.cluster import Constants
from laconic.planner.validation.large_models import Group, LargeModels
from laconic.report.validation_sections import table

_SHOWN = 10  # rows up to which a group is shown case by case


def large_table(found: LargeModels) -> Rendered:
    """Return the errors by group, and each case of the small groups."""
    summary = [
        [group.name, str(len(group.cases)), *(f"{100 * part:.1f}" for part in _errors(group))] for group in found.groups
    ]
    cases = [
        [group.name, case.name, f"{case.measured:.2f}", f"{case.predicted:.2f}", f"{100 * case.error:+.1f}"]
        for group in found.groups
        if len(group.cases) <= _SHOWN
        for case in group.cases
    ]
    return Rendered(
        table("error of an iteration's time, %", ("runs", "number", "mean", "median", "largest"), summary),
        table("each run", ("runs", "run", "measured s", "predicted s", "error %"), cases, left=2),
    )


def large_lines(found: LargeModels) -> list[str]:
    """Return the fitted constants, and what was left out."""
    constants: dict[Constants, Group] = {}
    for group in found.groups:
        constants.setdefault(group.constants, group)
    return [
        *(f"{group.name}: {group.rests_on}" for group in found.groups),
        *(
            f"constants of {group.name}: products reach {100 * one.product_share:.1f} % of the peak, memory "
            f"{100 * one.memory_share:.1f} %, {1e6 * one.launch_seconds:.1f} us a launch, "
            f"{1e6 * one.collective_seconds:.0f} us a collective and doubling, {1e3 * one.step_seconds:.1f} ms a step"
            for one, group in constants.items()
        ),
        *found.notes,
    ]


def large_values(found: LargeModels) -> dict[str, Any]:
    """Return the groups with their errors, constants and cases, as plain values."""
    groups = [
        {
            "name": group.name,
            "rests_on": group.rests_on,
            "constants": asdict(group.constants),
            "errors": asdict(group.errors),
            "cases": [asdict(case) | {"error": case.error} for case in group.cases],
        }
        for group in found.groups
    ]
    return {"groups": groups, "notes": list(found.notes)}


def _errors(group: Group) -> tuple[float, float, float]:
    return group.errors.mean, group.errors.median, group.errors.largest

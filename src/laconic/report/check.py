"""Findings of `laconic check` for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from textwrap import fill

from laconic.check.suite import Checked


def lines(checked: Checked) -> str:
    """Return what was found of one technique: a line for each property, and each counter-example below its own."""
    shown = [f"{checked.name}: {checked.sentence}" if checked.sentence else checked.name]
    for finding in checked.findings:
        mark = "holds " if finding.holds else "FAILS "
        shown.append(fill(finding.says, 110, initial_indent=f"  {mark} ", subsequent_indent=" " * 9))
        if finding.counter_example is not None:
            shown.append(fill(finding.counter_example, 110, initial_indent=" " * 9 + "→ ", subsequent_indent=" " * 11))
    failed = sum(not finding.holds for finding in checked.findings)
    shown.append(f"  {len(checked.findings) - failed} of {len(checked.findings)} properties hold.")
    return "\n".join(shown)


def as_json(all_checked: Iterable[Checked]) -> str:
    return json.dumps([{**asdict(checked), "holds": checked.holds} for checked in all_checked], indent=2)

"""Which marked checks a mutant made fail, and which none did: a check that nothing can make fail shows nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from bench.mutation import sources
from bench.mutation.results import Result
from bench.mutation.techniques import Mark

MARK = re.compile(r"mark\.technique\(\s*[\"'](\w+)[\"']\s*,\s*check\s*=\s*(\d+)")


def written(tests: Iterable[str]) -> set[Mark]:
    """Return the marks that stand in these files or folders of tests."""
    return {
        (name, int(check))
        for place in tests
        for path in _files(sources.ROOT / place.partition("::")[0])
        for name, check in MARK.findall(path.read_text())
    }


def _files(place: Path) -> Iterator[Path]:
    return place.rglob("*.py") if place.is_dir() else iter([place])


def report(
    borne: Collection[Mark], killed: Collection[Mark], drawn: Iterable[Result], written: Collection[Mark]
) -> str:
    """Return the checks that no mutant made fail, with the number of mutants tried, and those that were not tried.

    `borne` are the marks of tests that mutants are tried against, `drawn` the results of mutants drawn for a mark.
    """
    tried = Counter(known.mark for known in drawn)
    seen = sorted(mark for mark in borne if mark in killed)
    lines = [f"{len(seen)} of {len(borne)} marks had an assertion that a mutant of their technique failed."]
    for name, check in sorted(mark for mark in borne if mark not in killed):
        number = tried[f"{name} {check}"]
        how = f"{number} drawn for it" if number else "none drawn: --marks was not run, or no line of it is"
        lines.append(f"    without one: {name} {check} ({how})")
    for name, check in sorted(mark for mark in written if mark not in borne):
        lines.append(f"    not tried: {name} {check} (its tests are long, start processes or fail without a mutant)")
    return "\n".join(lines)

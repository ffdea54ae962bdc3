"""What became of mutants: records that a run adds to, and the table made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.mutation.choice import Job, is_of
from bench.mutation.mutant import Mutant
from bench.mutation.reach import Reach
from bench.mutation.records import records
from bench.mutation.techniques import Mark


@dataclass(frozen=True)
class Result:
    """A mutant, and the tests that failed with it.

    `verdict` is "killed" where a test failed, did not end or ended its process; "survived"; "unreached" where no test
    runs the line; "same" where no code changed. `long`: whether long tests were among those that were tried; `by_long`:
    whether only one of them failed.
    """

    key: str
    file: str
    line: int
    scope: str
    operator: str
    diff: str
    verdict: str
    killers: list[str]
    tried: int
    long: bool
    by_long: bool = False
    mark: str = ""
    """The mark that the mutant was drawn for, where it is not of the sample."""
    asserted: list[str] = field(default_factory=list)
    """The killers of which an assertion failed; the others broke on their way, as any test would that runs the line."""

    def mutant(self) -> Mutant:
        return Mutant(self.key, self.file, self.scope, self.line, self.operator, -1, "", "")


def result(job: Job, log: Iterable[Mapping[str, Any]], long: bool) -> Result:
    """Read what a child has written: a test that was begun and is not heard of again has failed."""
    assert job.mutant is not None, "the control has no result of its own"
    log = list(log)
    ended = {entry["test"]: entry["passed"] for entry in log if "test" in entry}
    begun = {entry["begun"]: entry["long"] for entry in log if "begun" in entry}
    killers = [test for test in begun if not ended.get(test, False)]
    changed = sum(entry.get("changed", 0) for entry in log)
    tests = [*job.all_of, *job.until_failure]
    verdict = "killed" if killers else "same" if not changed else "survived" if tests else "unreached"
    m = job.mutant
    by_long = bool(killers) and all(begun[test] for test in killers)
    asserted = [entry["test"] for entry in log if entry.get("asserted")]
    how = (verdict, killers, len(begun), long, by_long, job.mark, asserted)
    return Result(m.key, m.file, m.line, m.scope, m.operator, m.diff(), *how)


def read(path: Path) -> dict[tuple[str, str], Result]:
    """Return the last result of each mutant, by its key and the mark it was drawn for."""
    found = (Result(**record) for record in records(path))
    return {(known.key, known.mark): known for known in found}


def without(failing: Container[str], found: Mapping[tuple[str, str], Result]) -> dict[tuple[str, str], Result]:
    """Return results as if these tests had not been run; a mutant that only they killed has no result."""
    kept = {}
    for key, known in found.items():
        killers = [test for test in known.killers if test not in failing]
        if killers or not known.killers:
            asserted = [test for test in known.asserted if test not in failing]
            kept[key] = replace(known, killers=killers, asserted=asserted)
    return kept


def is_done(known: Result | None, long: bool, again: bool) -> bool:
    """Return whether a mutant need not be run: it was killed, or lives and nothing new is asked.

    One that was drawn for a mark and broke its test on the way has not shown that the mark can fail, as if it lived.
    """
    if known is None:
        return False
    killed = known.verdict == "killed" and bool(known.asserted or not known.mark)
    return killed or known.verdict == "same" or not (again or (long and not known.long))


def killed_marks(results: Iterable[Result], reaches: Mapping[str, Reach]) -> set[Mark]:
    """Return the marks of which a test's assertion failed with a mutant of its technique."""
    return {
        mark
        for known in results
        for test in known.asserted
        if test in reaches
        for mark in marks_of(reaches[test])
        if is_of(known.mutant(), mark)
    }


def marks_of(reach: Reach) -> Iterator[Mark]:
    return ((name, check) for name, check in reach.marks)


def report(results: Iterable[Result], reasons: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the table by folder and operator, and the survivors.

    `reasons` say, by key, why no test can tell a mutant from the code.
    """
    results = [known for known in results if known.verdict != "same"]
    heads = f"{'survived':>10}{'equivalent':>12}{'unreached':>11}"
    lines = [f"{'':<20}{'mutants':>8}{'make test':>11}{'long tests':>12}{heads}"]
    folders = sorted({known.file.partition("/")[0] for known in results})
    groups = [(folder, [k for k in results if k.file.startswith(folder + "/")]) for folder in folders]
    groups += [(op, [k for k in results if k.operator == op]) for op in sorted({k.operator for k in results})]
    for name, group in [*groups, ("all", results)]:
        counts = Counter(known.verdict for known in group)
        by_long = sum(known.by_long for known in group)
        fast = counts["killed"] - by_long
        share = f"{fast} ({fast / max(len(group), 1):.0%})"
        same = sum(known.verdict == "survived" and known.key in reasons for known in group)
        alive = f"{counts['survived'] - same:>10}{same:>12}{counts['unreached']:>11}"
        lines.append(f"{name:<20}{len(group):>8}{share:>11}{by_long:>12}{alive}")
    ordered = sorted(results, key=lambda known: (known.file, known.line))
    left = [known for known in ordered if known.verdict != "killed" and known.key not in reasons]
    lines += ["", "Survivors:" if left else "No survivor."]
    for known in left:
        how = f"{known.tried} tests" if known.verdict == "survived" else "no test runs the line"
        lines.append(f"{known.file}:{known.line} {known.scope}, {known.operator}, {how}, {known.key}")
        lines += [f"    {line}" for line in known.diff.splitlines()[:6]]
    for known in ordered:
        if known.key in reasons:
            how = "killed, so that its reason is wrong" if known.verdict == "killed" else "equivalent"
            lines.append(f"{known.file}:{known.line} {known.scope}, {known.operator}, {known.key}: {how}")
            lines += [f"    {line}" for line in [*known.diff.splitlines()[:6], reasons[known.key]]]
    return "\n".join(lines)

"""The control: a test counts only if it passes without a mutant, in the very way in which mutants are tried.

A test may pass under pytest and fail in a forked process, or after others there. Whatever it says of a mutant then
means nothing: such tests are named in the report, and no mutant is tried against them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.mutation.choice import Job
from bench.mutation.reach import Reach
from bench.mutation.records import append, records

SECONDS = 20.0
"""How long the tests of one process take together, about."""


class Control:
    """What is known of tests without a mutant. A record holds as long as the test and all that it reaches."""

    def __init__(self, path: Path, reaches: Mapping[str, Reach]) -> None:
        self.path, self.reaches = path, reaches
        digests = {test: reach.digest for test, reach in reaches.items()}
        self.passed = {r["test"]: r["passed"] for r in records(path) if digests.get(r["test"]) == r["digest"]}

    @property
    def failing(self) -> set[str]:
        return {test for test, passed in self.passed.items() if not passed}

    def jobs(self, wanted: Iterable[Reach], seconds: float = SECONDS) -> Iterator[Job]:
        """Yield those of these tests of which nothing is known, in groups that take about so long; 0: each alone."""
        group: list[Reach] = []
        for reach in wanted:
            if reach.test not in self.passed:
                group.append(reach)
                if sum(one.seconds for one in group) >= seconds:
                    yield Job(None, tuple(group), ())
                    group = []
        if group:
            yield Job(None, tuple(group), ())

    def record(self, done: Job, log: Iterable[Mapping[str, Any]]) -> None:
        """Note what became of the tests that were begun; one that is not heard of again has failed."""
        log = list(log)
        ended = {entry["test"]: entry["passed"] for entry in log if "test" in entry}
        for entry in log:
            if test := entry.get("begun"):
                passed = bool(ended.get(test, False))
                self.passed[test] = passed
                append(self.path, {"test": test, "digest": self.reaches[test].digest, "passed": passed})

    def report(self) -> str:
        """Return how many tests were tried, and which are left out."""
        failing = sorted(self.failing)
        head = f"Control: {len(self.passed) - len(failing)} of {len(self.passed)} tests pass without a mutant."
        return "\n".join([head, *(f"    left out: {test}" for test in failing)])

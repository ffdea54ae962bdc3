"""Which tests a mutant is run against, and in which order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from bench.mutation import techniques
from bench.mutation.mutant import Mutant
from bench.mutation.reach import Reach
from bench.mutation.techniques import Mark


@dataclass(frozen=True)
class Job:
    """A mutant (None: the control), the tests that are all run, and those that are run until one fails."""

    mutant: Mutant | None
    all_of: tuple[Reach, ...]
    until_failure: tuple[Reach, ...]
    mark: str = ""
    """The mark that it was drawn for, where it is not of the sample."""


class Index:
    """What is known of tests, by the statements that they reach."""

    def __init__(self, reaches: Iterable[Reach]) -> None:
        self.tests = [reach for reach in reaches if reach.passed]
        self._by_line: dict[tuple[str, int], list[Reach]] = defaultdict(list)
        for reach in self.tests:
            for file, lines in reach.lines.items():
                for line in lines:
                    self._by_line[file, line].append(reach)

    def covering(self, mutant: Mutant) -> list[Reach]:
        return self._by_line[mutant.file, mutant.line]


def job(mutant: Mutant, index: Index, marks: Iterable[Mark], limit: float) -> Job:
    """Choose tests that reach the mutant's line, of at most so many seconds in all.

    All tests are run that bear one of these marks for the mutant's technique. Of the others, those of `make test` come
    before long ones, one case of each test function before a second one, and fast ones first.
    """
    wanted = {mark for mark in marks if is_of(mutant, mark)}
    covering = sorted(index.covering(mutant), key=lambda reach: reach.seconds)
    marked = _within([r for r in covering if wanted.intersection(map(tuple, r.marks))], limit / 2)
    cases: Counter[str] = Counter()
    turns = {}
    for reach in covering:
        function = reach.test.partition("[")[0]
        turns[reach.test] = cases[function]
        cases[function] += 1
    others = [reach for reach in covering if reach not in marked]
    others.sort(key=lambda reach: (reach.long, turns[reach.test], reach.seconds))
    return Job(mutant, tuple(marked), tuple(_within(others, limit)))


def job_for_mark(mutant: Mutant, index: Index, mark: Mark, limit: float) -> Job:
    """Choose the tests that bear this mark and reach the mutant's line."""
    marked = [reach for reach in index.covering(mutant) if mark in map(tuple, reach.marks)]
    return Job(
        mutant, tuple(_within(sorted(marked, key=lambda reach: reach.seconds), limit)), (), f"{mark[0]} {mark[1]}"
    )


def _within(reaches: Iterable[Reach], seconds: float) -> list[Reach]:
    """Return the first ones that take no longer together; the first in any case."""
    chosen: list[Reach] = []
    for reach in reaches:
        if not chosen or reach.seconds <= seconds:
            chosen.append(reach)
            seconds -= reach.seconds
    return chosen


def is_of(mutant: Mutant, mark: Mark) -> bool:
    """Return whether a mutant is one of this mark's technique: in its class or function, or in what all of its file
    share. A technique that no file registers (a sentence made of words) has every mutant."""
    name, scope = mark[0], mutant.scope.partition(".")[0]
    return techniques.is_in(name, mutant.file, scope) or not techniques.is_registered(name)

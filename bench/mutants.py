"""Mutation testing: one thing at a time is broken in four words, and the tests that run it must fail.

    python bench/mutants.py --mutants 400 --seed 0          # against the tests of `make test`
    python bench/mutants.py --mutants 400 --seed 0 --long   # what is left, against long tests too
    python bench/mutants.py --marks                         # mutants for marks that were not seen to fail yet
    python bench/mutants.py --at sync/hsp.py:44             # every mutant of one statement, or of one file

The words are sync/, compression/, schedule/ and architecture/. A mark's mutants are drawn from the files of its
technique, which may lie elsewhere (a bound in theory/, a graph in topology/, an optimizer in optim/). The first run
collects which tests run which statements; then the tests that mutants will be tried against run without one, and those
that fail so are left out (the control). Everything is kept in `--folder`, so that an interrupted run goes on where it
was and a second one only does what is new; `--again` tries survivors once more, after new tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import pytest  # noqa: E402
from bench.mutation import marks, reach, reasons, results, sources, techniques  # noqa: E402
from bench.mutation.choice import Index, Job, is_of, job, job_for_mark  # noqa: E402
from bench.mutation.control import Control  # noqa: E402
from bench.mutation.mutant import Mutant, mutants_of, sample  # noqa: E402
from bench.mutation.records import append  # noqa: E402
from bench.mutation.running import Mutating  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=400, help="size of the sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--long", action="store_true", help="also tests that `make test` leaves out")
    parser.add_argument("--marks", action="store_true", help="draw mutants for technique marks instead of a sample")
    parser.add_argument("--tries", type=int, default=20, help="mutants drawn for a mark, at most")
    parser.add_argument("--at", action="append", metavar="FILE[:LINE]", help="all mutants of this place, not a sample")
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--limit", type=float, default=30, help="seconds of tests, at most, for a mutant")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so long")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "mutants")
    parser.add_argument("--report", action="store_true", help="only print what is known")
    parser.add_argument("tests", nargs="*", default=["tests"], help="folders or files of tests")
    asked = parser.parse_args()
    os.chdir(ROOT)
    if not asked.report:
        _collect(asked)
    run = Run(asked)
    if not asked.report:
        _pytest(asked, Mutating((run.controls, run.single_controls, run.jobs), asked.workers, run.record))
    print(run.report())
    return 0


def _pytest(asked: argparse.Namespace, plugin: object) -> int:
    arguments = ["-q", "-p", "no:cacheprovider", *asked.tests, *([] if asked.long else ["-m", "not long"])]
    return int(pytest.main(arguments, plugins=[plugin]))


def _collect(asked: argparse.Namespace) -> None:
    """Collect in a process of its own, whose sources are instrumented."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if not child:
        os._exit(_pytest(asked, reach.Collecting(asked.folder / "reach.jsonl", asked.workers)))
    os.waitpid(child, 0)


class Run:
    """The jobs that are left, one after another, and what became of those that were run."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.until = asked, time.monotonic() + 60 * asked.minutes
        self.path = asked.folder / ("marks.jsonl" if asked.marks else "results.jsonl")
        self.reaches = reach.read(asked.folder / "reach.jsonl")
        self.sampled = results.read(asked.folder / "results.jsonl")
        self.of_marks = results.read(asked.folder / "marks.jsonl")
        self.control = Control(asked.folder / "control.jsonl", self.reaches)
        self.index = Index(test for test in self.reaches.values() if self._is_asked(test))
        self.drawn = sample(self._mutants(sources.files()), sys.maxsize if asked.at else asked.mutants, asked.seed)
        self.marks = {mark for test in self.index.tests for mark in results.marks_of(test)}
        self._leave_out_failing()

    def _mutants(self, files: Iterable[str]) -> list[Mutant]:
        """Return the mutants of these files, of the places that were asked for."""
        mutants = [mutant for file in files for mutant in mutants_of(file)]
        if not self.asked.at:
            return mutants
        return [m for m in mutants if not {m.file, f"{m.file}:{m.line}"}.isdisjoint(self.asked.at)]

    def _is_asked(self, test: reach.Reach) -> bool:
        inside = test.test.startswith(tuple(os.path.relpath(place, ROOT) for place in self.asked.tests))
        return inside and (self.asked.long or not test.long)

    def report(self) -> str:
        drawn = [self.sampled[mutant.key, ""] for mutant in self.drawn if (mutant.key, "") in self.sampled]
        borne = {mark for test in self.index.tests for mark in results.marks_of(test)}
        of_marks = marks.report(borne, self.killed, self.of_marks.values(), marks.written(self.asked.tests))
        return "\n\n".join([results.report(drawn, reasons.read()), of_marks, self.control.report()])

    def controls(self) -> Iterator[Job]:
        """Yield jobs without a mutant: the tests that mutants will be tried against, and those that killed some."""
        known = [*self.sampled.values(), *self.of_marks.values()]
        wanted = {test: self.reaches[test] for one in known for test in one.killers if test in self.reaches}
        wanted |= {test.test: test for job in self._pending() for test in (*job.all_of, *job.until_failure)}
        return self._in_time(self.control.jobs(wanted.values()))

    def single_controls(self) -> Iterator[Job]:
        """Yield those once more, each alone, whose process ended before they had their turn."""
        wanted = {test.test: test for job in self._pending() for test in (*job.all_of, *job.until_failure)}
        return self._in_time(self.control.jobs(wanted.values(), seconds=0))

    def jobs(self) -> Iterator[Job]:
        self._leave_out_failing()
        return self._in_time(self._pending())

    def _leave_out_failing(self) -> None:
        """Forget what tests said that fail without a mutant too, and choose them no more."""
        failing = self.control.failing
        self.index = Index(test for test in self.index.tests if test.test not in failing)
        self.sampled, self.of_marks = (results.without(failing, found) for found in (self.sampled, self.of_marks))
        self.killed = results.killed_marks([*self.sampled.values(), *self.of_marks.values()], self.reaches)

    def _pending(self) -> Iterator[Job]:
        return self._for_marks() if self.asked.marks else self._for_sample()

    def _in_time(self, jobs: Iterator[Job]) -> Iterator[Job]:
        return takewhile(lambda _: time.monotonic() < self.until, jobs)

    def _for_sample(self) -> Iterator[Job]:
        for mutant in self.drawn:
            if not results.is_done(self.sampled.get((mutant.key, "")), self.asked.long, self.asked.again):
                yield job(mutant, self.index, self.marks - self.killed, self.asked.limit)

    def _for_marks(self) -> Iterator[Job]:
        by_line: dict[tuple[str, int], list[Mutant]] = {}
        for mutant in self._mutants([*sources.files(), *techniques.outside()]):
            by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
        for mark in sorted(self.marks - self.killed):
            tests = [test for test in self.index.tests if mark in results.marks_of(test)]
            reached = {(file, line) for test in tests for file, lines in test.lines.items() for line in lines}
            found = [m for place in sorted(reached) for m in by_line.get(place, ()) if is_of(m, mark)]
            for mutant in sample(found, self.asked.tries, self.asked.seed):
                made = job_for_mark(mutant, self.index, mark, self.asked.limit)
                known = self.of_marks.get((mutant.key, made.mark))
                if mark not in self.killed and not results.is_done(known, self.asked.long, self.asked.again):
                    yield made

    def record(self, done: Job, log: list[dict[str, Any]]) -> None:
        if done.mutant is None:
            self.control.record(done, log)
            return
        known = results.result(done, log, self.asked.long)
        append(self.path, asdict(known))
        (self.of_marks if self.asked.marks else self.sampled)[known.key, known.mark] = known
        self.killed |= results.killed_marks([known], self.reaches)
        print(f"{known.verdict:<10}{known.file}:{known.line} {known.operator} ({known.tried} tests)", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

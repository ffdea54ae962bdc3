"""The fork server: a pytest session that has imported and collected everything, and a forked child for each mutant.

A child gives the mutant's functions their changed code and runs the chosen tests; nothing is written to the working
tree. Processes that a test starts see the code as it is.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from bench.mutation import patch, sources
from bench.mutation.choice import Job
from bench.mutation.forked import is_asserted, run_items
from bench.mutation.reach import Reach
from bench.mutation.records import append, records

from laconic import registry

MEMORY_BYTES = 8 * 2**30
Entry = dict[str, Any]
Items = Mapping[str, pytest.Item]
Phase = Callable[[], Iterator[Job]]


def allowed(seconds: float) -> float:
    """Return how long a test may take that took so long without a mutant, before it counts as an endless loop."""
    return 10 + 5 * seconds


class Mutating:
    """A pytest plugin that runs jobs instead of tests, a few at a time, and records what became of each.

    A phase says which jobs there are when all of the phase before have ended.
    """

    def __init__(self, phases: Sequence[Phase], workers: int, record: Callable[[Job, list[Entry]], None]) -> None:
        self.phases, self.workers, self.record = phases, workers, record

    def pytest_sessionstart(self) -> None:
        """Let a property fail with its first counter-example: searching for the smallest takes longer than allowed."""
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("first_counterexample", phases=phases)
        hypothesis.settings.load_profile("first_counterexample")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        registry.load()  # words are imported when a sentence first names one, which may be in a test
        known = patch.functions(str(sources.SOURCE))
        gc.collect()
        gc.freeze()  # what all children share stays shared
        with tempfile.TemporaryDirectory(prefix="laconic-mutants-") as folder:
            for phase in self.phases:
                self._run(phase(), items, known, Path(folder))
        return True

    def _run(self, jobs: Iterator[Job], items: Items, known: dict[patch.Name, list[Any]], folder: Path) -> None:
        running: dict[int, tuple[Job, Path, float]] = {}
        begun = 0
        try:
            while True:
                while len(running) < self.workers and (job := next(jobs, None)) is not None:
                    begun += 1
                    log = folder / str(begun)
                    child = os.fork()
                    if not child:
                        _child(job, items, known, log)
                    limit = 30 + sum(allowed(reach.seconds) for reach in (*job.all_of, *job.until_failure))
                    running[child] = job, log, time.monotonic() + limit
                if not running:
                    return
                self._await(running)
        finally:
            for child in running:
                _end(child)

    def _await(self, running: dict[int, tuple[Job, Path, float]]) -> None:
        """Wait until a child has ended, or has had its time."""
        time.sleep(0.02)
        for child, (job, log, deadline) in list(running.items()):
            ended, _ = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() < deadline:
                continue
            _end(child, wait=not ended)
            del running[child]
            self.record(job, records(log))
            log.unlink(missing_ok=True)


def _end(child: int, wait: bool = True) -> None:
    """Kill a child and whatever its tests have started."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if wait:
        os.waitpid(child, 0)


def _child(job: Job, items: Items, known: dict[patch.Name, list[Any]], log: Path) -> None:
    """Run a job's tests and end this process, whatever happens."""
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        append(log, {"changed": 0 if job.mutant is None else patch.apply(job.mutant, known)})
        passed = [_passes(reach, items, log) for reach in job.all_of]
        if all(passed):
            all(_passes(reach, items, log) for reach in job.until_failure)
    except BaseException as error:
        append(log, {"failure": repr(error)})
    finally:
        os._exit(0)


def _passes(reach: Reach, items: Items, log: Path) -> bool:
    """Run one test; one that takes too long fails, and ends this process."""
    if reach.test not in items:
        return True

    def late(signum: int, frame: object) -> None:
        append(log, {"test": reach.test, "long": reach.long, "passed": False, "late": True})
        os._exit(0)

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, allowed(reach.seconds))
    append(log, {"begun": reach.test, "long": reach.long})
    ((_, failures),) = run_items([items[reach.test]])
    signal.setitimer(signal.ITIMER_REAL, 0)
    how = {"passed": not failures, "asserted": is_asserted(failures)}
    append(log, {"test": reach.test, "long": reach.long, **how})
    return not failures

"""Which tests run which statements: each statement of a function first writes a byte, and a test is asked which.

Records are lines of a file, one per test, that is added to: an interrupted collection goes on where it was.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from bench.mutation import sources, techniques
from bench.mutation.forked import is_in_process, run_items, shares
from bench.mutation.records import append, records
from bench.mutation.techniques import Mark

SEEN = "__seen__"


@dataclass(frozen=True)
class Reach:
    """What a test runs: the first lines of statements, by file, and how long it takes."""

    test: str
    digest: str
    seconds: float
    passed: bool
    long: bool
    marks: list[tuple[str, int]] = field(default_factory=list)
    lines: dict[str, list[int]] = field(default_factory=dict)


def read(path: Path) -> dict[str, Reach]:
    """Return what was recorded and still holds, by test: the test and all that it reaches have not changed."""
    known = (Reach(**record) for record in records(path))
    return {reach.test: reach for reach in known if reach.digest == digest(reach.test, reach.marks, reach.lines)}


def digest(test: str, marks: Iterable[Mark], reached: Iterable[str]) -> str:
    """Return what changes when a test's file does, or a file that it reaches or that its marks' techniques are in."""
    return sources.digest(test, {*reached, *techniques.outside_of((name, check) for name, check in marks)})


def instrument(tree: ast.Module, places: list[int]) -> ast.Module:
    """Put a write of byte number len(places) before each statement of a function; add the statement's line."""
    for block in sources.blocks(tree):
        for at in range(len(block) - 1, -1, -1):
            if not _is_text(block[at]):
                probe = ast.parse(f"{SEEN}[{len(places)}] = 1").body[0]
                for node in ast.walk(probe):
                    ast.copy_location(node, block[at])
                places.append(block[at].lineno)
                block.insert(at, probe)
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class Probes(MetaPathFinder):
    """An import hook that instruments the four words, and the files of techniques that lie outside of them."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int]] = []
        self.seen = bytearray(2**17)
        self.files = {*sources.files(), *techniques.outside()}
        setattr(builtins, SEEN, self.seen)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.startswith("laconic.") else None
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if Path(spec.loader.path).relative_to(sources.SOURCE).as_posix() not in self.files:
            return None
        spec.loader = _Instrumenting(spec.loader.name, spec.loader.path, self)
        return spec

    def take(self) -> dict[str, list[int]]:
        """Return what was run since the last call."""
        found: dict[str, list[int]] = defaultdict(list)
        at = self.seen.find(1)
        while at >= 0:
            file, line = self.places[at]
            found[file].append(line)
            at = self.seen.find(1, at + 1)
        self.seen[:] = bytes(len(self.seen))
        return dict(found)


class _Instrumenting(SourceFileLoader):
    def __init__(self, name: str, path: str, probes: Probes) -> None:
        super().__init__(name, path)
        self.probes = probes

    def get_code(self, fullname: str) -> CodeType:
        file = Path(self.path).relative_to(sources.SOURCE).as_posix()
        lines = [0] * len(self.probes.places)
        tree = instrument(sources.tree_of(file), lines)
        self.probes.places += [(file, line) for line in lines[len(self.probes.places) :]]
        return compile(tree, self.path, "exec", dont_inherit=True)


class Collecting:
    """A pytest plugin that runs tests as pytest does, in as many processes as asked, and records what each reaches."""

    def __init__(self, path: Path, workers: int) -> None:
        self.path, self.workers, self.probes = path, workers, Probes()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = read(self.path)
        left = [item for item in session.items if item.nodeid not in known and is_in_process(item)]
        print(f"\n{len(known)} tests are known; collecting what {len(left)} more reach", file=sys.stderr)
        children = []
        for share in shares(left, self.workers):
            child = os.fork()
            if not child:
                self._record(share)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        return True

    def _record(self, items: Sequence[pytest.Item]) -> None:
        self.probes.take()
        began = time.monotonic()
        for item, failures in run_items(items):
            now = time.monotonic()
            marks = [(m.args[0], m.kwargs["check"]) for m in item.iter_markers("technique")]
            long, lines = item.get_closest_marker("long") is not None, self.probes.take()
            reach = Reach(
                item.nodeid, digest(item.nodeid, marks, lines), round(now - began, 3), not failures, long, marks, lines
            )
            append(self.path, asdict(reach))
            began = now

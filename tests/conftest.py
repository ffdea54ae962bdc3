"""Shared fixtures."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests import data
from tests.cases import few_of
from tests.real.launching import Launched
from tests.real.pool import Pool

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton: its interpreter runs the bodies for GPUs
torch.set_num_threads(1)  # as workers have, virtual ones too: the order of a product's sums depends on the threads

ALONE = (
    "real",
    "experiments",
    "integrations",
    "launch",
    "liveness",
    "rpc",
    "runtime",
    "cli",
    "network/test_interfaces",
    "profile",
    "sharded/test_lines",
    "sharded/test_traffic",
    "test_",
    "sync/test_hogwild",
    "virtual/test_equivalence",
    "virtual/test_script",
)
"""Tests that start processes, or look for networks, which removes what others left: one at a time, with one pool."""

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")


DEADLINE = float(os.environ.get("LACONIC_DEADLINE", "inf"))
"""The time of the clock after which tests are left out: where it is set, files come in an order that depends on it, so
that it is not always the same ones."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run on two cores (`-n 2 --dist loadgroup`), a file stays together."""
    here = Path(__file__).parent
    if math.inf > DEADLINE:
        files = sorted({item.path for item in items})
        random.Random(DEADLINE).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
    for item in items:
        place = item.path.relative_to(here).as_posix()
        alone = place.startswith(ALONE) or "pool" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("processes" if alone else place))
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("long"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        kept = few_of([_values_of(case) for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.long)


def _values_of(item: pytest.Item) -> dict[str, Any]:
    """Return which value a case has of each list that its test is given, by its parameters."""
    lists = (mark.args[0] for mark in item.iter_markers("parametrize"))
    named = [own.split(",") if isinstance(own, str) else own for own in lists]
    return {",".join(own): tuple(item.callspec.params[name.strip()] for name in own) for own in named}  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of the garbage collector's rounds: it stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let it be collected at the end of the process."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out whose turn comes too late."""
    if time.time() > DEADLINE:
        pytest.skip("left out: the time is up")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that is marked as evidence by a recording, and has passed without reading it."""
    data.OPENED.clear()
    yield
    for mark in item.iter_markers("evidence"):
        recording = mark.kwargs.get("recording")
        if recording and recording not in data.OPENED:
            pytest.fail(f"{item.name} bears {mark.args[0]}'s evidence by {recording}, and does not read it")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Leave the environment as it was: connecting names an interface in it, which processes started later would use."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four connected worker processes, started on first use."""
    made = Pool()
    yield made
    made.stop()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Start launchers; whatever is left of them at the end of the test is killed."""
    started: list[Launched] = []

    def start(*arguments: str, name: str = "run", **keywords: object) -> Launched:
        started.append(Launched(tmp_path / name, *arguments, **keywords))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.process.terminate()
            try:
                launched.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                launched.process.kill()
        for pid in launched.left_behind():
            os.kill(pid, signal.SIGKILL)

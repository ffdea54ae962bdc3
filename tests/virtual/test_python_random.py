"""The state of Python's random numbers is the same, read as memory and by `getstate`."""

from __future__ import annotations

import platform
import random
from typing import Any

import pytest

from laconic.virtual import python_random


def draws() -> list[Any]:
    return [random.random(), random.gauss(0, 1), random.randrange(10**30), random.sample(range(1000), 20)]


@pytest.fixture(autouse=True)
def own_state() -> Any:
    before = random.getstate()
    yield
    random.setstate(before)


@pytest.mark.parametrize("apart", [False, True], ids=["as memory", "by getstate"])
@pytest.mark.parametrize("drawn", [0, 1, 700])
def test_a_restored_state_draws_the_same(drawn: int, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if apart:
        monkeypatch.setattr(python_random, "_memory", None)
    random.seed(7)
    for _ in range(drawn):
        random.gauss(0, 1)
    kept, known = python_random.state(), random.getstate()
    expected = draws()
    random.seed(8)
    python_random.restore(kept)
    assert random.getstate() == known
    assert draws() == expected


def test_a_kept_state_does_not_follow_later_draws() -> None:
    kept = python_random.state()
    draws()
    assert python_random.state() != kept


@pytest.mark.skipif(platform.python_implementation() != "CPython", reason="other Pythons keep it elsewhere")
def test_cpython_keeps_it_where_it_is_looked_for() -> None:
    assert python_random._memory is not None

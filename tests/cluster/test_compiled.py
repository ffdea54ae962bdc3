"""Compiled loops find what the same lines of plain Python find, which is what runs where Numba is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from laconic.cluster import compiled

if not hasattr(compiled.in_turn, "py_func"):
    pytest.skip("Numba is not installed: the loops are plain Python", allow_module_level=True)


def both(loop: Any, make: Any) -> None:
    """Call a loop compiled and as plain Python, each on arrays of its own, and compare results and arrays."""
    ours, theirs = make(), make()
    assert loop(*ours) == loop.py_func(*theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", range(20))
def test_loops_over_jobs(seed: int) -> None:
    def jobs() -> tuple[Any, ...]:
        draw = np.random.default_rng(seed)
        workers = draw.integers(1, 6, 12)
        return draw.permutation(12), workers, workers * draw.integers(0, 2, 12), int(draw.integers(0, 20))

    both(compiled.in_turn, lambda: (*jobs(), np.zeros(12, dtype=np.int64)))

    def amounts() -> list[Any]:
        draw = np.random.default_rng(seed)
        return [draw.permutation(12)[:7], *(draw.uniform(0, 9, 12) for _ in range(3)), 11.5, np.empty(7)]

    both(compiled.grown, amounts)
    both(compiled.remaining, lambda: [(given := amounts())[0], np.linspace(0, 40, 12), *given[1:]])


@pytest.mark.parametrize("seed", range(20))
def test_loops_over_devices(seed: int) -> None:
    def room() -> tuple[Any, ...]:
        draw = np.random.default_rng(seed)
        free = draw.choice([0.0, 0.25, 1.0], (5, 4))
        return free, (free == 1.0).sum(1), draw.uniform(size=5) < 0.8

    def moved() -> tuple[Any, ...]:
        draw = np.random.default_rng(seed)
        slots = np.stack([draw.integers(-1, 6, 6), draw.integers(-1, 5, 6), draw.choice([0.25, 1.0], 6)], 1)
        return *room(), slots.astype(float), draw.choice([-1.0, 1.0])

    both(compiled.move, moved)
    workers = min(seed, int(room()[1].sum()))
    both(compiled.on_few_hosts, lambda: (*room()[:2], np.zeros(workers, dtype=np.int64)))

"""Fits find what timings were made of, also among outliers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.errors import LaconicError
from laconic.profile.fit import (
    fit_line,
    isotonic_regression,
    operation_times,
    pace_beside,
    shared_seconds,
    weighted_median,
)
from laconic.real.profiling.steps import Step, latest, model_times
from laconic.values.profile import Point
from laconic.values.tensor_spec import TensorSpec

SIZES = [96.0 * 4**k for k in range(9)]
ALPHAS, BETAS = st.floats(1e-5, 0.1), st.floats(1e-10, 1e-6)


@given(ALPHAS, BETAS)
def test_a_line_is_recovered(alpha: float, beta: float) -> None:
    found = fit_line([(n, alpha + beta * n) for n in SIZES])
    assert found == pytest.approx((alpha, beta), rel=1e-6, abs=1e-9)


@given(ALPHAS, BETAS, st.integers(0, 7), st.floats(2, 20))
def test_one_bad_timing_does_not_matter(alpha: float, beta: float, place: int, factor: float) -> None:
    timings = [(n, (alpha + beta * n) * (factor if k == place else 1)) for k, n in enumerate(SIZES)]
    assert fit_line(timings)[1] == pytest.approx(beta, rel=0.5)


@given(ALPHAS, BETAS, st.lists(st.floats(-0.05, 0.05), min_size=9, max_size=9))
def test_noise_of_a_few_percent_stays_a_few_percent(alpha: float, beta: float, noise: list[float]) -> None:
    timings = [(n, (alpha + beta * n) * (1 + e)) for n, e in zip(SIZES, noise, strict=True)]
    found_alpha, found_beta = fit_line(timings)
    largest = alpha + beta * SIZES[-1]
    assert found_alpha + found_beta * SIZES[-1] == pytest.approx(largest, rel=0.2)


def test_nothing_cannot_be_fitted() -> None:
    with pytest.raises(LaconicError, match="at least one size"):
        fit_line([])
    assert fit_line([(5.0, 0.25)]) == (0.25, 0.0)
    assert weighted_median([(1.0, 1.0), (2.0, 5.0), (9.0, 1.0)]) == 2.0


@given(st.floats(0.001, 1), st.floats(0.6, 1), st.integers(1, 8))
def test_what_is_shared_is_recovered_from_operations_at_once(alone: float, share: float, pairs: int) -> None:
    """Two lanes, each of which would take half of the others' time were nothing shared."""
    shared = alone * share
    assert shared_seconds(alone, 2 * pairs * shared, 2 * pairs, 2) == pytest.approx(shared)
    assert shared_seconds(alone, pairs * alone, 2 * pairs, 2) == 0.0
    assert shared_seconds(alone, 5 * pairs * alone, 2 * pairs, 2) == alone
    assert shared_seconds(alone, alone, 1, 2) == shared_seconds(alone, alone, 8, 1) == alone


@given(st.floats(0.01, 1), st.floats(0.001, 1), st.floats(0.05, 1))
def test_the_pace_beside_computing_is_recovered(alone: float, computing: float, pace: float) -> None:
    computing = min(computing, alone)
    both = computing + alone - pace * computing
    assert pace_beside(alone, computing, both) == pytest.approx(pace, abs=1e-6)


def test_larger_messages_never_cost_less() -> None:
    times = operation_times(
        "all_reduce", "float32", [Point(1e6, 0.2, 0.2), Point(64, 0.005, 0.004), Point(4096, 0.004, 0.001)]
    )
    assert [p.wire_bytes for p in times.points] == [64, 4096, 1e6]
    assert [p.alone_seconds for p in times.points] == pytest.approx([0.0045, 0.0045, 0.2])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=12))
def test_rising_never_falls_and_keeps_what_rises(values: list[float]) -> None:
    risen = isotonic_regression(values)
    assert all(a <= b + 1e-9 for a, b in pairwise(risen)) and sum(risen) == pytest.approx(sum(values))
    assert isotonic_regression(sorted(values)) == pytest.approx(sorted(values))


def test_marks_become_times() -> None:
    """Two workers, two steps; a gradient counts when the later one has it."""
    specs = [TensorSpec(name, (2,), torch.float32) for name in ("a", "b")]

    def step(forward: float, b: float, a: float, end: float) -> Step:
        return {(0, "forward", None): forward, (1, "backward", "b"): b, (1, "backward", "a"): a, (1, "step", None): end}

    workers = [[step(1, 2, 4, 5), step(1, 2, 4, 5)], [step(1, 3, 4, 5), step(1, 3, 4, 7)]]
    times = model_times(latest(workers), specs)
    assert [(t.name, t.backward_seconds) for t in times.tensors] == [("b", 2.0), ("a", 1.0)]
    assert (times.forward.median, times.backward.median, times.step.median) == (1.0, 3.0, 2.0)
    with pytest.raises(LaconicError, match="no whole step"):
        model_times([], specs)

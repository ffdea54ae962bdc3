"""Axes hold what is drawn on them; numbers are shown in units people use."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from laconic.report.page.axes import axis_for, wide_apart
from laconic.report.page.units import Unit, number, spread, times, unit_for, with_unit

numbers = st.floats(-1e9, 1e9, allow_nan=False)
positive = st.floats(1e-9, 1e12)


@pytest.mark.long
@given(st.lists(numbers, min_size=1, max_size=8), st.booleans(), st.integers(2, 12))
@settings(max_examples=200, deadline=None)
def test_values_and_ticks_lie_on_a_linear_axis(values: list[float], zero: bool, count: int) -> None:
    assume(max(values) - min(values) > 1e-6 * max(map(abs, values)) or len(set(values)) == 1)
    axis = axis_for(values, "plain", "loss", zero=zero)
    assert all(-1e-9 <= axis.at(value) <= 1 + 1e-9 for value in values)
    ticks = axis.ticks(count)
    assert 1 <= len(ticks) <= count + 2
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value, _ in ticks)
    assert all(a < b for (a, _), (b, _) in pairwise(ticks))


@pytest.mark.long
@given(st.lists(positive, min_size=1, max_size=8), st.integers(2, 12))
@settings(max_examples=200, deadline=None)
def test_values_and_ticks_lie_on_a_logarithmic_axis(values: list[float], count: int) -> None:
    axis = axis_for(values, "seconds", "time", log=True)
    assert axis.log
    assert all(-1e-9 <= axis.at(value) <= 1 + 1e-9 for value in values)
    assert all(-1e-6 <= axis.at(value) <= 1 + 1e-6 for value, _ in axis.ticks(count))
    assert len(axis.ticks(count)) <= count + 1


def test_an_axis_without_finite_values_is_still_an_axis() -> None:
    axis = axis_for([math.nan, math.inf], "seconds", "time", log=True)
    assert axis.at(axis.low) == 0
    assert axis.at(axis.high) == 1


def test_only_positive_values_far_apart_ask_for_a_logarithm() -> None:
    assert wide_apart([1, 100])
    assert not wide_apart([1, 10])
    assert not wide_apart([0, 100])
    assert not wide_apart([])


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0.0000123, "seconds", "12.3 µs"), (0.0177, "seconds", "17.7 ms"), (65.0, "seconds", "65.0 s"),
        (7300, "seconds", "2.03 h"), (6825, "bytes", "6.83 kB"), (1.5e9, "bytes", "1.50 GB"), (0, "bytes", "0 B"),
        (None, "bytes", "–"),
    ],
)  # fmt: skip
def test_units_suit_the_value(value: float | None, kind: str, shown: str) -> None:
    assert with_unit(value, kind) == shown  # type: ignore[arg-type]


def test_a_column_has_one_unit_and_spreads_are_left_out_where_nothing_spreads() -> None:
    unit = unit_for([0.0001, 0.25, None, math.inf], "seconds")
    assert unit == Unit(1e-3, "ms")
    assert unit.heading("step") == "step (ms)"
    assert spread(unit, 0.25, 0.2, 0.3) == "250 [200–300]"
    assert spread(unit, 0.25, 0.25, 0.25) == spread(unit, 0.25, math.nan, math.nan) == "250"
    assert times(1.0 / 3.0) == "0.333×"
    assert [number(v) for v in (12345.6, 0.00012345, -2.5, math.inf)] == ["12,346", "0.000123", "-2.50", "∞"]

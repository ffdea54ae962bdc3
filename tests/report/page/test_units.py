"""Numbers as text: three digits, no powers of ten where there is a unit."""

from __future__ import annotations

import re

import pytest

from laconic.report.page.units import MISSING, number, unit_for, with_unit
from laconic.units import seconds, write_seconds


@pytest.mark.parametrize("value", [2.3e-15, 4.8e-11, -3e-14, 0.0])
def test_less_than_a_clock_can_tell_is_nothing(value: float) -> None:
    assert with_unit(value, "seconds") == "0 µs"
    assert unit_for([3.0], "seconds").of(value) == "0"


@pytest.mark.parametrize("power", range(-16, 8))
@pytest.mark.parametrize("digits", [1.0, 2.345, 9.999])
def test_no_duration_is_written_as_a_power_of_ten(power: int, digits: float) -> None:
    value = digits * 10.0**power
    for text in (with_unit(value, "seconds"), unit_for([1e-3, value], "seconds").of(value)):
        assert not re.search(r"\de", text)
    written = with_unit(value, "seconds")
    if value > 1e-9:
        amount, unit = written.split()
        size = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
        assert float(amount.replace(",", "")) * size == pytest.approx(value, rel=0.006)


def test_numbers_without_a_unit_keep_their_size() -> None:
    assert number(2.3e-9) == unit_for([1.0], "plain").of(2.3e-9) == "2.3e-09"
    assert with_unit(None, "seconds") == MISSING


@pytest.mark.parametrize("text", ["50 µs", "50 ms", "1.5 s", "0.5 µs", "0 µs"])
def test_times_are_written_as_people_do(text: str) -> None:
    assert write_seconds(seconds(text.replace("µ", "u").replace(" ", ""))) == text

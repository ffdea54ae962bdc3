"""Gaps at sizes that were not measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laconic.frontier.trend import Rung, Trend

THREE, TEN, THIRTY = 3_000_000, 10_000_000, 30_000_000


def trend(*gaps: float, half: float = 0.001) -> Trend:
    return Trend(tuple(Rung(size, gap, half) for size, gap in zip((THREE, TEN, THIRTY), gaps, strict=False)))


def test_measured_sizes_have_their_measured_gap() -> None:
    found = trend(0.03, 0.02, 0.01)
    assert [found.at(size).middle for size in (THREE, TEN, THIRTY)] == pytest.approx([0.03, 0.02, 0.01])
    assert found.at(TEN).low == pytest.approx(0.019) and found.at(TEN).high == pytest.approx(0.021)
    assert found.at(1e6) == found.at(THREE)
    assert found.at(math.sqrt(THREE * TEN)).middle == pytest.approx(0.025)


def test_what_a_gap_rests_on_is_said() -> None:
    assert [trend(0.03, 0.02).basis(size) for size in (3e6, 10e6, 10.9e6, 30e6)] == [*["measured"] * 3, "trend"]
    assert trend(0.03).basis(10e6) == "last rung" and trend(0.03).slope is None


def test_one_rung_is_kept_as_it_is() -> None:
    assert trend(0.03).at(70e9) == trend(0.03).at(THREE)


def test_a_gap_that_grows_grows_by_as_much_for_each_tenfold_size() -> None:
    found = Trend((Rung(10**6, 0.01, 0.0), Rung(10**7, 0.02, 0.0)))
    assert found.slope == pytest.approx(0.01)
    assert [found.at(size).middle for size in (1e8, 1e9)] == pytest.approx([0.03, 0.04])


def test_a_gap_that_shrinks_does_so_by_the_same_share_and_is_not_credited_for_certain() -> None:
    found = Trend((Rung(10**6, 0.02, 0.001), Rung(10**7, 0.01, 0.001)))
    at = [found.at(size) for size in (1e8, 1e9, 70e9)]
    assert at[1].middle / at[0].middle == pytest.approx(at[0].middle / 0.01)
    assert all(0 < one.middle < 0.01 for one in at)
    assert all(one.high >= 0.011 for one in at)


def test_the_share_by_which_a_gap_shrinks_is_the_one_that_was_measured() -> None:
    """From 40 to 10 % over a threefold size is to 0.053 times as much over a tenfold one, and so it goes on."""
    found = Trend((Rung(THREE, 0.4, 0.01), Rung(3 * THREE, 0.1, 0.01)))
    assert found.at(9 * THREE).middle == pytest.approx(0.025)
    assert found.at(30 * THREE).middle == pytest.approx(0.1 * (1 / 4) ** (1 / math.log10(3)))
    assert found.at(9 * THREE).low < 0.025 * 0.9


def test_a_gap_that_shrank_to_none_is_not_continued() -> None:
    assert Trend((Rung(THREE, 0.02, 0.001), Rung(TEN, -0.001, 0.001))).at(1e9).middle == -0.001
    assert Trend((Rung(THREE, -0.01, 0.001), Rung(TEN, 0.03, 0.0), Rung(THIRTY, -0.02, 0.0))).at(1e9).middle == -0.02


@given(st.lists(st.floats(-0.05, 0.3), min_size=1, max_size=3), st.floats(0, 0.02), st.floats(6.5, 11), st.floats(0, 1))
def test_intervals_hold_their_middle_and_widen(gaps: list[float], half: float, size: float, more: float) -> None:
    found = trend(*gaps, half=half)
    near, far = found.at(10**size), found.at(10 ** (size + more))
    assert near.low - 1e-12 <= near.middle <= near.high + 1e-12
    if 10**size >= found.measured_up_to:
        assert far.high >= near.high - 1e-12 and far.low <= near.low + 1e-12


@given(st.lists(st.floats(0.0001, 0.3), min_size=2, max_size=3), st.floats(6.5, 11))
def test_no_trend_reaches_the_loss_of_ddp(gaps: list[float], size: float) -> None:
    assert trend(*gaps).at(10**size).middle >= 0


def test_a_rung_of_one_seed_is_given_an_interval_or_has_none() -> None:
    unknown = Trend((Rung(THREE, 0.02, 0.001), Rung(TEN, 0.02, math.nan)))
    assert math.isnan(unknown.at(TEN).low) and math.isnan(unknown.at(1e9).high)
    assert not math.isnan(unknown.at(THREE).low)

"""Medians, pairs and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.experiments.statistics import bootstrap_ratio, mean_and_range, paired, quartiles, ratios


def test_quartiles_are_not_moved_by_one_bad_block() -> None:
    spread = quartiles([1.0, 2.0, 3.0, 4.0, 1000.0])
    assert spread is not None
    assert (spread.low, spread.middle, spread.high) == (2.0, 3.0, 4.0)
    assert quartiles([]) is None


def test_only_what_both_have_is_paired() -> None:
    assert paired({1: 10.0, 2: 20.0, 4: 40.0}, {2: 2.0, 3: 3.0, 4: 4.0}) == [(20.0, 2.0), (40.0, 4.0)]


def test_a_ratio_by_round_is_free_of_a_drift_that_touches_both() -> None:
    drift = {number: 1.0 + number for number in range(11)}
    ratio = ratios({n: 0.5 * seconds for n, seconds in drift.items()}, drift)
    assert ratio is not None
    assert (ratio.low, ratio.middle, ratio.high) == (0.5, 0.5, 0.5)


def test_the_interval_draws_whole_pairs() -> None:
    """Seeds that differ by a factor of a thousand say nothing about a ratio that is the same for all."""
    theirs = {seed: 10.0**seed for seed in range(5)}
    ratio = bootstrap_ratio({seed: 2 * value for seed, value in theirs.items()}, theirs)
    assert ratio is not None
    assert ratio.low == ratio.middle == ratio.high == pytest.approx(2.0)


@pytest.mark.long
def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        theirs = dict(enumerate(rng.normal(10, 1, 40)))
        ours = {seed: 0.7 * value + rng.normal(0, 1) for seed, value in theirs.items()}
        ratio = bootstrap_ratio(ours, theirs)
        assert ratio is not None
        hits += ratio.low <= 0.7 <= ratio.high
    assert 86 <= hits <= 99


def test_the_interval_is_the_same_each_time_and_missing_without_numbers() -> None:
    ours, theirs = {1: 1.0, 2: 3.0}, {1: 2.0, 2: 2.0}
    assert bootstrap_ratio(ours, theirs) == bootstrap_ratio(ours, theirs)
    assert bootstrap_ratio(ours, {3: 1.0}) is None
    assert bootstrap_ratio({1: float("nan")}, {1: 1.0}) is None
    assert bootstrap_ratio({1: 1.0}, {1: 0.0}) is None


def test_one_pair_has_a_ratio_and_no_spread() -> None:
    for ratio in (ratios({1: 1.0}, {1: 2.0}), bootstrap_ratio({1: 1.0}, {1: 2.0})):
        assert ratio is not None and ratio.middle == 0.5
        assert math.isnan(ratio.low) and math.isnan(ratio.high)


def test_a_mean_leaves_out_what_is_no_number() -> None:
    spread = mean_and_range([1.0, 3.0, float("nan")])
    assert spread is not None
    assert (spread.middle, spread.low, spread.high) == (2.0, 1.0, 3.0)

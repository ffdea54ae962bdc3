"""Short trainings: whether they rank methods as full ones do, and what choosing by them costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from laconic.experiments.statistics import spearman
from laconic.frontier.short import short_runs
from laconic.frontier.tables import tables
from laconic.planner.runs import Run
from tests.frontier.rows import ladder

GAPS = {"diloco(10)": 0.01, "diloco(30)": 0.02, "diloco(100)": 0.03, "bsp / two_bit": 0.2}


def test_short_runs_of_the_same_order_predict_and_cost_nothing() -> None:
    found, longer = short_runs(tables(ladder(GAPS))[0])
    assert longer.share == pytest.approx(0.15) and longer.correlation == pytest.approx(1.0)  # those that chose rates
    assert found.share == pytest.approx(0.1) and found.correlation == pytest.approx(1.0) and found.regret == 0.0
    assert found.methods == 4  # with bsp, and without the one that is 20 % off


def test_short_runs_of_the_opposite_order_cost_the_difference() -> None:
    found, _ = short_runs(tables(_scaled({"bsp": 1.3, "diloco(10)": 1.2, "diloco(30)": 1.1}))[0])
    assert found.correlation == pytest.approx(-1.0)
    assert found.chosen.name == "diloco(100)" and found.best.name == "bsp" and found.regret == pytest.approx(0.03)


def test_short_runs_at_another_rate_than_the_reported_one_do_not_count() -> None:
    runs = [replace(run, lr=5e-4) if run.purpose == "short" else run for run in ladder(GAPS)]
    assert [one.share for one in short_runs(tables(runs)[0])] == pytest.approx([0.15])


def test_each_length_has_a_line_of_its_own() -> None:
    longer = [replace(run, steps=2 * run.steps) for run in ladder(GAPS) if run.purpose == "short"]
    assert [one.share for one in short_runs(tables([*ladder(GAPS), *longer])[0])] == pytest.approx([0.1, 0.15, 0.2])


def _scaled(factors: dict[str, float]) -> list[Run]:
    return [
        replace(run, loss=run.final * factors.get(run.sentence, 1.0)) if run.purpose == "short" else run
        for run in ladder(GAPS)
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=9))
def test_the_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    if len(set(ours)) == 1 or len(set(theirs)) == 1:
        assert spearman(ours, theirs) is None
    else:
        assert spearman(ours, theirs) == pytest.approx(float(spearmanr(ours, theirs).statistic))
    assert spearman(ours[:2], theirs[:2]) is None


def test_infinite_losses_are_the_last_in_rank() -> None:
    assert spearman([1.0, 2.0, np.inf], [1.0, 2.0, 3.0]) == pytest.approx(1.0)

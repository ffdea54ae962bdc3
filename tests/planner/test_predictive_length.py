"""The shortest training that was shown to predict: by the order of short runs beside that of long ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laconic.planner.predictive_length import predictive_length
from laconic.planner.runs import Run
from tests.planner.test_risk import HERE, run

FULL = {"bsp": 1.00, "local(4)": 1.008, "local(8)": 1.02, "diloco(30)": 1.03, "bsp / qsgd": 1.04, "signum": 1.5}
SAME = {text: 2 * loss for text, loss in FULL.items()}
SWAPPED = SAME | {"bsp": SAME["bsp / qsgd"], "bsp / qsgd": SAME["bsp"]}
NEIGHBOURS = SAME | {"bsp": SAME["local(4)"], "local(4)": SAME["bsp"]}


def rows(shorts: dict[int, dict[str, float]], **more: Any) -> list[Run]:
    found = [run(text, seed, loss, **more) for text, loss in FULL.items() for seed in (1, 2)]
    for steps, losses in shorts.items():
        found += [run(t, 0, loss, purpose="short", steps=steps, **more) for t, loss in losses.items()]
    return found


def test_the_shortest_length_whose_order_is_that_of_full_runs() -> None:
    found = predictive_length(HERE, rows({300: SAME, 600: SAME, 1500: SAME}))
    assert found is not None and (found.steps, found.share, found.task) == (300, 0.1, "bytes")
    assert (found.correlation, found.regret, found.strategies) == (pytest.approx(1), 0, 5)


def test_a_length_counts_if_all_longer_ones_predict_too() -> None:
    found = predictive_length(HERE, rows({300: SAME, 600: SWAPPED, 1500: SAME}))
    assert found is not None and found.steps == 1500
    assert predictive_length(HERE, rows({300: SAME, 1500: SWAPPED})) is None


def test_runs_that_choose_a_rate_count_at_the_rate_that_is_reported() -> None:
    def choosing(losses: dict[str, float], lr: float) -> list[Run]:
        return [run(text, 0, loss, purpose="rate", steps=600, lr=lr) for text, loss in losses.items()]

    found = predictive_length(HERE, [*rows({}), *choosing(SAME, 0.001), *choosing(SWAPPED, 0.004)])
    assert found is not None and found.steps == 600
    assert predictive_length(HERE, [*rows({}), *choosing(SWAPPED, 0.001), *choosing(SAME, 0.004)]) is None


def test_a_size_with_too_few_strategies_does_not_speak_against_another() -> None:
    few = {text: SAME[text] for text in ("bsp", "local(4)")}
    small = rows({100: few}, rung="breadth", parameters=3_000_000)
    found = predictive_length(HERE, [*rows({300: SAME}), *small])
    assert found is not None and found.steps == 300


def test_regret_is_what_the_first_of_the_short_runs_ends_with_above_the_best() -> None:
    found = predictive_length(HERE, rows({300: NEIGHBOURS}))
    assert found is not None and found.regret == pytest.approx(0.008) and found.correlation == pytest.approx(0.9)
    worse = [
        replace(one, loss=1.012) if one.purpose == "report" and one.sentence == "local(4)" else one
        for one in rows({300: NEIGHBOURS})
    ]
    assert predictive_length(HERE, worse) is None


def test_strategies_far_from_bsp_make_no_order_easy() -> None:
    """With the one that ends 50 % above, the order of the others would hardly matter."""
    far = {"signum": 9.0, "local(64)": 9.5, "local(128)": 9.9}
    full = [run(text, seed, 2.0 + k) for k, text in enumerate(far) for seed in (1, 2)]
    short = [run(text, 0, loss, purpose="short", steps=300) for text, loss in far.items()]
    assert predictive_length(HERE, [*rows({300: SWAPPED}), *full, *short]) is None


def test_too_few_strategies_show_nothing() -> None:
    few = {text: SAME[text] for text in ("bsp", "local(4)", "local(8)")}
    assert predictive_length(HERE, rows({300: few})) is None


@pytest.mark.parametrize("other", [{"kind": "convolutional"}, {"optimizer": "sgd"}, {"workers": 4}])
def test_other_trainings_show_nothing(other: dict[str, Any]) -> None:
    assert predictive_length(replace(HERE, **other), rows({300: SAME})) is None


def test_of_two_tasks_the_longer_length_counts_and_both_must_predict() -> None:
    first = rows({300: SAME, 600: SAME})
    found = predictive_length(HERE, [*first, *rows({300: SWAPPED, 600: SAME}, task="bpe")])
    assert found is not None and (found.steps, found.task) == (600, "bpe")
    assert predictive_length(HERE, [*first, *rows({300: SWAPPED, 600: SWAPPED}, task="bpe")]) is None


def test_without_short_runs_nothing_is_known() -> None:
    assert predictive_length(HERE, rows({})) is None and predictive_length(HERE, []) is None

"""Equal tuning, on trials that are a formula: the arithmetic is seen without running anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from laconic.experiments.settings import CompareError
from laconic.experiments.tuning_protocol import CachedTrials, Curve, Trial, least_trials, tune

SEEDS = (0, 1)


def bowl(best: float, seconds: float = 10.0, floor: float = 1.0) -> Callable[[Trial], Curve]:
    """A loss that is least at one learning rate, comes down in a straight line and takes `seconds`."""

    def run(trial: Trial) -> Curve:
        final = floor + math.log2(trial.learning_rate / best) ** 2 + 0.01 * trial.seed
        return Curve(tuple((seconds * k / 10, 20 + (final - 20) * k / 10) for k in range(1, 11)))

    return run


def test_the_best_of_seven_rates_is_taken_and_no_other_is_tried() -> None:
    choice = tune("bsp", 0.1, SEEDS, bowl(0.2), falls=True)
    assert choice.learning_rate == pytest.approx(0.2)
    assert not choice.at_an_end
    assert sorted(choice.tried["bsp"]) == pytest.approx([0.1 * 2.0**k for k in range(-3, 4)])
    assert choice.finals == pytest.approx({0: 1.0, 1: 1.01})


@pytest.mark.parametrize(
    ("best", "rates", "taken", "at_an_end"),
    [(0.8, 8, 0.8, False), (1.6, 9, 1.6, False), (0.1 / 16, 9, 0.1 / 16, False), (100.0, 9, 3.2, True)],
)
def test_the_grid_grows_while_the_best_lies_at_its_end_but_twice_at_most(
    best: float, rates: int, taken: float, at_an_end: bool
) -> None:
    choice = tune("bsp", 0.1, SEEDS, bowl(best), falls=True)
    assert len(choice.tried["bsp"]) == rates
    assert choice.learning_rate == pytest.approx(taken)
    assert choice.at_an_end is at_an_end


def test_between_values_of_a_knob_the_time_to_the_target_decides() -> None:
    """The value that learns most per step is slow; the one that is fastest never gets there."""
    runs = {
        "local(period=4)": bowl(0.1, seconds=30, floor=1.0),
        "local(period=8)": bowl(0.1, seconds=10, floor=1.4),
        "local(period=16)": bowl(0.1, seconds=1, floor=2.0),
    }
    choice = tune("local(period={4|8|16})", 0.1, SEEDS, lambda t: runs[t.strategy](t), True, dict.fromkeys(SEEDS, 1.5))
    assert choice.strategy == "local(period=8)"
    assert set(choice.tried) == set(runs)


def test_where_no_value_reaches_the_target_the_best_metric_decides() -> None:
    runs = {"local(4)": bowl(0.1, 30, floor=1.0), "local(8)": bowl(0.1, 1, floor=2.0)}
    choice = tune("local({4|8})", 0.1, SEEDS, lambda t: runs[t.strategy](t), True, dict.fromkeys(SEEDS, 0.5))
    assert choice.strategy == "local(4)"


def test_a_reference_whose_knob_changes_no_mathematics_takes_the_fastest() -> None:
    runs = {"torch:ddp(1)": bowl(0.1, 10), "torch:ddp(5)": bowl(0.1, 7, floor=1 + 1e-7), "torch:ddp(25)": bowl(0.1, 9)}
    choice = tune("torch:ddp({1|5|25})", 0.1, SEEDS, lambda t: runs[t.strategy](t), falls=True)
    assert choice.strategy == "torch:ddp(5)"


def test_a_metric_that_rises_is_tuned_upwards() -> None:
    def accuracy(trial: Trial) -> Curve:
        return Curve(((0.0, 0.1), (1.0, 0.9 - abs(math.log2(trial.learning_rate / 0.05)) / 10)))

    assert tune("bsp", 0.1, SEEDS, accuracy, falls=False).learning_rate == pytest.approx(0.05)


@pytest.mark.parametrize("points", [((1.0, 5.0),), ((1.0, 5.0), (2.0, math.nan)), ((1.0, 2.0), (2.0, 2.0))])
def test_a_curve_that_shows_no_direction_decides_none(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(CompareError, match="something_loss or something_score"):
        Curve(points).falls("something")


def test_a_loss_logged_once_is_tuned_downwards() -> None:
    def run(trial: Trial) -> Curve:
        return Curve(((10.0, 0.2 + abs(math.log2(trial.learning_rate / 0.2))),))

    falls = run(Trial("bsp", 0.1, 0)).falls("loss")
    assert tune("bsp", 0.1, SEEDS, run, falls).learning_rate == pytest.approx(0.2)


def test_runs_that_diverge_are_never_the_best_and_none_but_those_is_an_error() -> None:
    def half(trial: Trial) -> Curve:
        return Curve(((1.0, math.nan),)) if trial.learning_rate > 0.1 else bowl(0.4)(trial)

    assert tune("bsp", 0.1, SEEDS, half, falls=True).learning_rate == pytest.approx(0.1)
    with pytest.raises(CompareError, match="never logged a finite metric"):
        tune("bsp", 0.1, SEEDS, lambda trial: Curve(()), falls=True)


def test_trials_that_were_run_are_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    run = bowl(0.2)
    ran: list[Trial] = []

    def counting(trial: Trial) -> Curve:
        ran.append(trial)
        return run(trial)

    first = tune("bsp", 0.1, SEEDS, CachedTrials(path, counting), falls=True)
    assert len(ran) == least_trials(["bsp"], SEEDS) == 14
    with path.open("a") as file:
        file.write('{"trial": {"strategy": "bs')  # cut off in the middle of a line
    assert tune("bsp", 0.1, SEEDS, CachedTrials(path, counting), falls=True) == first
    assert len(ran) == 14


def test_trials_that_failed_are_tried_again(tmp_path: Path) -> None:
    path, trial = tmp_path / "trials.jsonl", Trial("bsp", 0.1, 0)
    assert CachedTrials(path, lambda trial: Curve(()))(trial) == Curve(())
    assert CachedTrials(path, bowl(0.1))(trial).points


def test_a_curve_knows_when_it_was_as_good_as_a_value() -> None:
    falling = Curve(((1.0, 5.0), (2.0, 3.0), (3.0, 4.0)))
    assert falling.falls("something")
    assert not falling.falls("accuracy")
    assert Curve(((1.0, 5.0), (2.0, math.nan))).falls("val_loss"), "one point, or none that is finite, is enough"
    assert falling.seconds_to(3.5, falls=True) == 2.0
    assert falling.seconds_to(1.0, falls=True) == math.inf
